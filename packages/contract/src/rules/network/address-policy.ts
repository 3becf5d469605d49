/**
 * Which addresses the host may connect to where a tenant names the server: a registry, an endpoint of an object store. Without
 * this, they could make the host send requests to its own services and its private networks. Names are resolved by the caller.
 */
import type { lookup as dnsLookup, LookupAddress } from 'node:dns';
import { BlockList, isIP, isIPv4, type LookupFunction } from 'node:net';
import { formatCidr, parseCidr } from './cidr.ts';
import { NEVER_REACHABLE, PRIVATE_RANGES } from './egress-rules.ts';

/** An entry that allows servers on this machine; see `AddressPolicy`. */
export const LOOPBACK_ENTRY = 'loopback';

/** IPv6 outside global unicast is refused as a whole; these parts of it lead to IPv4 or to nowhere. */
const SPECIAL_IPV6: readonly [string, number][] = [
  ['2001::', 32],
  ['2001:db8::', 32],
  ['2002::', 16],
];

function blockList(): { refused: BlockList; global: BlockList } {
  const refused = new BlockList();
  for (const cidr of [...NEVER_REACHABLE, ...PRIVATE_RANGES]) {
    const [address = '', bits = '32'] = formatCidr(cidr).split('/');
    refused.addSubnet(address, Number(bits), 'ipv4');
  }
  for (const [address, bits] of SPECIAL_IPV6) refused.addSubnet(address, bits, 'ipv6');
  const global = new BlockList();
  global.addSubnet('2000::', 3, 'ipv6');
  return { refused, global };
}
const RANGES = blockList();
/** `::ffff:a.b.c.d`, which connects to the IPv4 address. */
const MAPPED = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i;

/** Whether an address is one of the public internet. */
export function isPublicAddress(address: string): boolean {
  const plain = MAPPED.exec(address)?.[1] ?? address;
  const family = isIP(plain);
  if (family === 4) return !RANGES.refused.check(plain, 'ipv4');
  return family === 6 && RANGES.global.check(plain, 'ipv6') && !RANGES.refused.check(plain, 'ipv6');
}

/** This machine, by name: such hosts may be spoken to without TLS, as other container tools do. */
export function isLoopbackHost(host: string): boolean {
  const name = host.startsWith('[') ? host.slice(0, host.indexOf(']') + 1) : host.replace(/:[0-9]+$/, '');
  return name === 'localhost' || name === '[::1]' || (isIPv4(name) && name.startsWith('127.'));
}

/** How a policy resolves names, and what it says of an address that is not allowed. */
export interface AddressPolicyOptions {
  lookup: typeof dnsLookup;
  /** @param what the host, with its address where that is another text */
  refusal: (what: string) => Error;
}

/**
 * What the operator allows besides public addresses: a host, `host:port`, an IPv4 address or network, or `loopback`. `loopback`
 * is for the host and port that the tenant has named, never for what a server redirects to; the others are for both.
 */
export class AddressPolicy {
  readonly allowed: readonly string[];
  readonly #hosts = new Set<string>();
  readonly #networks = new BlockList();
  readonly #loopback: boolean;
  readonly #options: AddressPolicyOptions;

  constructor(allowed: readonly string[], options: AddressPolicyOptions) {
    this.allowed = allowed;
    this.#options = options;
    this.#loopback = allowed.includes(LOOPBACK_ENTRY);
    for (const entry of allowed) {
      const cidr = parseCidr(entry);
      if (cidr === undefined) this.#hosts.add(entry.toLowerCase());
      else {
        const [address = '', bits = '32'] = formatCidr(cidr).split('/');
        this.#networks.addSubnet(address, Number(bits), 'ipv4');
      }
    }
  }

  /** Whether `url` may lead anywhere. @param named `host[:port]` that the tenant has named */
  isTrusted(url: URL, named: string): boolean {
    const host = url.host.toLowerCase();
    if (this.#hosts.has(host) || this.#hosts.has(url.hostname.toLowerCase())) return true;
    return this.#loopback && isLoopbackHost(host) && host === hostOf(named, url.protocol);
  }

  /** @throws for a URL whose host is an address that is not allowed. */
  checkLiteral(url: URL): void {
    const host = url.hostname.replace(/^\[|\]$/g, '');
    if (isIP(host) !== 0 && !this.#allows(host)) throw this.#refusal(url.host, host);
  }

  /** Resolves a name, and gives only addresses that are allowed: these are connected to. */
  readonly lookup: LookupFunction = (hostname, options, callback) => {
    this.#options.lookup(hostname, { ...options, all: true }, (error, addresses: LookupAddress[]) => {
      if (error !== null) return callback(error, []);
      const refused = addresses.find(({ address }) => !this.#allows(address));
      // Not even the allowed ones of a name that has others: that is how DNS rebinding begins.
      if (refused !== undefined) return callback(this.#refusal(hostname, refused.address), []);
      const [first] = addresses;
      if (options.all === true) callback(null, addresses);
      else callback(null, first?.address ?? '', first?.family);
    });
  };

  #refusal(host: string, address: string): Error {
    return this.#options.refusal(host.includes(address) ? host : `${host}, which is ${address},`);
  }

  #allows(address: string): boolean {
    if (isPublicAddress(address)) return true;
    const plain = MAPPED.exec(address)?.[1] ?? address;
    return isIPv4(plain) && this.#networks.check(plain, 'ipv4');
  }
}

/** The named host as a URL of that scheme has it: without a default port. */
function hostOf(named: string, protocol: string): string {
  return new URL(`${protocol}//${named}/`).host;
}
