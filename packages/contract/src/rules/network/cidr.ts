/** IPv4 addresses and prefixes as numbers, and addresses of name servers: pure, strict, no I/O. */
import { isIP } from 'node:net';

/** A prefix: `base` has all bits after `bits` cleared; `bits` is 0..32. */
export interface Cidr {
  base: number;
  bits: number;
}

/** Dotted quad → unsigned 32-bit number, or undefined. Four plain decimal octets only: no `010`, no `1.2`. */
export function parseIpv4(text: string): number | undefined {
  const match = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(text);
  if (match === null) return undefined;
  let value = 0;
  for (const octet of match.slice(1)) {
    if ((octet.length > 1 && octet.startsWith('0')) || Number(octet) > 255) return undefined;
    value = value * 256 + Number(octet);
  }
  return value;
}

export function formatIpv4(value: number): string {
  return [24, 16, 8, 0].map((shift) => (value >>> shift) & 255).join('.');
}

/** Number of addresses in a prefix of `bits`. */
export function cidrSize(bits: number): number {
  return 2 ** (32 - bits);
}

/** `a.b.c.d/n` or a lone address (`/32`). Host bits are cleared, as every router does. */
export function parseCidr(text: string): Cidr | undefined {
  const [address, length, ...rest] = text.split('/');
  if (address === undefined || rest.length > 0) return undefined;
  const value = parseIpv4(address);
  if (value === undefined) return undefined;
  if (length === undefined) return { base: value, bits: 32 };
  if (!/^(?:[12]?\d|3[0-2])$/.test(length)) return undefined;
  const bits = Number(length);
  return { base: value - (value % cidrSize(bits)), bits };
}

export function formatCidr(cidr: Cidr): string {
  return cidr.bits === 32 ? formatIpv4(cidr.base) : `${formatIpv4(cidr.base)}/${cidr.bits}`;
}

export function overlaps(a: Cidr, b: Cidr): boolean {
  return a.base < b.base + cidrSize(b.bits) && b.base < a.base + cidrSize(a.bits);
}

/** True when every address of `inner` is one of `outer`. */
export function contains(outer: Cidr, inner: Cidr): boolean {
  return inner.bits >= outer.bits && overlaps(outer, inner);
}

export function containsAddress(outer: Cidr, address: number): boolean {
  return address >= outer.base && address < outer.base + cidrSize(outer.bits);
}

export interface NameServer {
  address: string;
  port: number;
}

const MAX_SERVERS = 3;

/** `nameserver` lines of a resolv.conf(5), the first three, as the C library uses them. */
export function parseResolvConf(text: string): NameServer[] {
  const servers: NameServer[] = [];
  for (const line of text.split('\n')) {
    const match = /^\s*nameserver\s+(\S+)/.exec(line);
    if (match?.[1] !== undefined && isIP(match[1].split('%')[0] ?? '') !== 0) {
      servers.push({ address: match[1], port: 53 });
    }
  }
  return servers.slice(0, MAX_SERVERS);
}

/** `1.2.3.4`, `1.2.3.4:5353` or an IPv6 address (with a port: `[::1]:5353`). */
export function parseNameServer(text: string): NameServer {
  const match = /^\[([^\]]+)\](?::(\d{1,5}))?$|^([\d.]+)(?::(\d{1,5}))?$/.exec(text);
  const address = match?.[1] ?? match?.[3] ?? text;
  const port = Number(match?.[2] ?? match?.[4] ?? 53);
  if (isIP(address) === 0 || port < 1 || port > 65_535) {
    throw new Error(`DNS upstream ${JSON.stringify(text)} must be an IP address, optionally with a port`);
  }
  return { address, port };
}

/** As `parseNameServer` reads it. */
export function formatNameServer({ address, port }: NameServer): string {
  return address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
}
