/** Entries of an egress allow-list, domains among them: parsed strictly to a canonical form. Pure. */
import { isIPv4, isIPv6 } from 'node:net';
import { badRequest, quote } from '../errors.ts';

export interface DomainPattern {
  /** Lower case, without a final dot. */
  domain: string;
  /** It matches every name below `domain`, and not `domain` itself. */
  wildcard: boolean;
}

const LABEL = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/;
/** RFC 1035 §2.3.4, without the final dot. */
const DOMAIN_CHARS = 253;

/** Reads `example.com` or `*.example.com`; null for everything else: addresses, schemes, paths, ports, a bare `*`. */
export function parseDomainPattern(text: string): DomainPattern | null {
  const wildcard = text.startsWith('*.');
  const domain = (wildcard ? text.slice(2) : text).toLowerCase().replace(/\.$/, '');
  if (domain.length > DOMAIN_CHARS) return null;
  const labels = domain.split('.');
  // A last label of digits only is a mistyped address; no such top level domain exists.
  if (!labels.every((label) => LABEL.test(label)) || /^\d+$/.test(labels.at(-1) ?? '')) return null;
  return { domain, wildcard };
}

/** The canonical pattern. */
export function formatDomainPattern({ domain, wildcard }: DomainPattern): string {
  return wildcard ? `*.${domain}` : domain;
}

export type EgressEntry =
  | { type: 'address'; address: string }
  /** `address` has no bits set beyond `prefix`. */
  | { type: 'network'; address: string; prefix: number }
  /** Lower case, without a final dot. With `wildcard` it matches every name below it, and not the domain itself. */
  | { type: 'domain'; domain: string; wildcard: boolean };

const ALLOWED = 'an IPv4 address, an IPv4 network as in 10.0.0.0/8, a domain, or *. and a domain';

/** Throws a 400 naming `field` for an invalid entry. */
export function parseEgressEntry(text: string, field = 'egress_policy.allow'): EgressEntry {
  const refuse = (why: string): Error =>
    badRequest(`${field} must be ${ALLOWED}, but was ${quote(text)}${why}`);
  if (isIPv4(text)) return { type: 'address', address: text };
  if (text.includes('/')) {
    const [address = '', prefix = '', ...more] = text.split('/');
    if (more.length > 0 || !isIPv4(address) || !/^(?:\d|[12]\d|3[0-2])$/.test(prefix)) throw refuse('');
    return { type: 'network', address: maskAddress(address, Number(prefix)), prefix: Number(prefix) };
  }
  if (isIPv6(text)) throw refuse(': IPv6 is not reachable from a sandbox');
  if (text === '*') throw refuse(`: to allow everything, leave ${field.split(/[.[]/, 1)[0]} out`);
  const pattern = parseDomainPattern(text);
  if (pattern === null) throw refuse('');
  return { type: 'domain', ...pattern };
}

/** The canonical entry. */
export function formatEgressEntry(entry: EgressEntry): string {
  if (entry.type === 'address') return entry.address;
  if (entry.type === 'network') return `${entry.address}/${entry.prefix}`;
  return formatDomainPattern(entry);
}

function maskAddress(address: string, prefix: number): string {
  const bits = address.split('.').reduce((all, part) => all * 256 + Number(part), 0);
  const masked = prefix === 0 ? 0 : Math.floor(bits / 2 ** (32 - prefix)) * 2 ** (32 - prefix);
  return [24, 16, 8, 0].map((shift) => Math.floor(masked / 2 ** shift) % 256).join('.');
}
