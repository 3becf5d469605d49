/** Header of the PROXY protocol, version 2, as HAProxy sends it (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt). */

const SIGNATURE = Buffer.from('0d0a0d0a000d0a515549540a', 'hex');
const FIXED_BYTES = 16;
const TCP4 = 0x11;
const TCP6 = 0x21;
const UNIQUE_ID = 0x05;
const ADDRESS_BYTES = { [TCP4]: 12, [TCP6]: 36 } as const;

export interface ProxyHeader {
  /** Of the client. */
  address: string;
  uniqueId?: string;
  /** Of the header itself. */
  bytes: number;
}

/** @returns undefined while it is incomplete. @throws when it is something else */
export function parseProxyHeader(data: Buffer): ProxyHeader | undefined {
  if (data.length < FIXED_BYTES) return undefined;
  if (!data.subarray(0, SIGNATURE.length).equals(SIGNATURE)) throw new Error('no PROXY header');
  const bytes = FIXED_BYTES + data.readUInt16BE(14);
  if (data.length < bytes) return undefined;
  const family = data[13] ?? 0;
  const source = data.subarray(FIXED_BYTES);
  const address = family === TCP4 ? ipv4(source) : family === TCP6 ? ipv6(source) : '';
  const header: ProxyHeader = { address, bytes };
  const skipped = family === TCP4 || family === TCP6 ? ADDRESS_BYTES[family] : bytes;
  for (let at = FIXED_BYTES + skipped; at + 3 <= bytes; ) {
    const length = data.readUInt16BE(at + 1);
    if (data[at] === UNIQUE_ID) header.uniqueId = data.toString('latin1', at + 3, at + 3 + length);
    at += 3 + length;
  }
  return header;
}

const ipv4 = (bytes: Buffer): string => [...bytes.subarray(0, 4)].join('.');

function ipv6(bytes: Buffer): string {
  const groups = Array.from({ length: 8 }, (_, index) => bytes.readUInt16BE(2 * index).toString(16));
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}
