/**
 * Reads the server name of a TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3) that may be cut into records and
 * segments at will. Bounded and pure: nothing is believed but lengths that fit.
 */
const RECORD_HEADER_BYTES = 5;
const HANDSHAKE_RECORD = 22;
const CLIENT_HELLO = 1;
/** RFC 8446 section 5.1: a record carries at most 2^14 bytes, and a handshake record at least one. */
const RECORD_MAX_BYTES = 2 ** 14;
/** Browsers send less than 2 KiB; post-quantum keys some KiB more. */
const HELLO_MAX_BYTES = 32 * 1024;
const SERVER_NAME = 0;
const HOST_NAME = 0;

/** `more`: bytes are missing. `invalid`: no ClientHello. Otherwise the name that it asks for, as it is written. */
export type ClientHello = 'more' | 'invalid' | { name: string | undefined };

export function readClientHello(bytes: Buffer): ClientHello {
  const handshake = joinRecords(bytes);
  if (handshake === 'invalid' || handshake.length === 0) return handshake === 'invalid' ? handshake : 'more';
  if (handshake[0] !== CLIENT_HELLO) return 'invalid';
  if (handshake.length < 4) return 'more';
  const length = handshake.readUIntBE(1, 3);
  if (length > HELLO_MAX_BYTES) return 'invalid';
  if (handshake.length < 4 + length) return 'more';
  try {
    return { name: serverName(handshake.subarray(4, 4 + length)) };
  } catch {
    return 'invalid';
  }
}

/** The content of the handshake records at the start, the last one of which may be incomplete. */
function joinRecords(bytes: Buffer): Buffer | 'invalid' {
  const parts: Buffer[] = [];
  let joined = 0;
  /** Of the whole hello, as soon as it says so. */
  let length: number | undefined;
  for (let at = 0; at < bytes.length; ) {
    if (bytes[at] !== HANDSHAKE_RECORD || (bytes[at + 1] ?? 3) !== 3) return 'invalid';
    if (bytes.length - at < RECORD_HEADER_BYTES) break;
    const size = bytes.readUInt16BE(at + 3);
    if (size === 0 || size > RECORD_MAX_BYTES) return 'invalid';
    const part = bytes.subarray(at + RECORD_HEADER_BYTES, at + RECORD_HEADER_BYTES + size);
    parts.push(part);
    joined += part.length;
    // What follows a whole hello is not looked at: early data may be of another type.
    if (length === undefined && joined >= 4) length = 4 + Buffer.concat(parts).readUIntBE(1, 3);
    if (length !== undefined && joined >= length) break;
    at += RECORD_HEADER_BYTES + size;
  }
  return Buffer.concat(parts);
}

/** Reads fields in order; throws beyond the end. */
class Fields {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get left(): number {
    return this.#bytes.length - this.#at;
  }

  number(size: number): number {
    return this.take(size).readUIntBE(0, size);
  }

  take(length: number): Buffer {
    if (length > this.left) throw new RangeError('a field is longer than what it is in');
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  /** What follows its length of `size` bytes. */
  vector(size: number): Fields {
    return new Fields(this.take(this.number(size)));
  }
}

function serverName(body: Buffer): string | undefined {
  const hello = new Fields(body);
  hello.take(2 + 32);
  hello.vector(1);
  hello.vector(2);
  hello.vector(1);
  if (hello.left === 0) return undefined;
  const extensions = hello.vector(2);
  if (hello.left !== 0) throw new RangeError('something follows the extensions');
  let name: string | undefined;
  const seen = new Set<number>();
  while (extensions.left > 0) {
    const type = extensions.number(2);
    const extension = extensions.vector(2);
    // Servers differ in which of two they use.
    if (seen.has(type)) throw new RangeError('an extension is there twice');
    seen.add(type);
    if (type !== SERVER_NAME) continue;
    const names = extension.vector(2);
    if (names.number(1) !== HOST_NAME) throw new RangeError('a server name of an unknown type');
    name = names.take(names.number(2)).toString('latin1');
    if (names.left !== 0 || extension.left !== 0) throw new RangeError('more than one server name');
  }
  return name;
}
