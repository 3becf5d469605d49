/** IPv4 addresses and prefixes as numbers: pure, strict, no I/O. */

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
