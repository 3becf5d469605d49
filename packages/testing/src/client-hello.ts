/** TLS ClientHellos for tests of what reads them. */

export interface HelloOptions {
  /** Server names, as they are written; more than one is not allowed by the protocol. */
  names?: readonly string[];
  /** An encrypted_client_hello extension beside them. */
  ech?: boolean;
  /** Bytes of the handshake in each record. */
  recordBytes?: number;
}

/** The records of a ClientHello (RFC 8446 section 4.1.2). */
export function clientHello({ names = [], ech = false, recordBytes = 16_384 }: HelloOptions = {}): Buffer {
  const list = names.map((name) => Buffer.concat([Buffer.from([0]), vector(2, Buffer.from(name))]));
  const extensions = [
    ...(names.length === 0 ? [] : [extension(0, vector(2, Buffer.concat(list)))]),
    extension(0x002b, vector(1, Buffer.from([3, 4]))),
    ...(ech ? [extension(0xfe0d, Buffer.alloc(200, 7))] : []),
  ];
  const body = Buffer.concat([
    Buffer.from([3, 3]),
    Buffer.alloc(32, 1),
    vector(1, Buffer.alloc(32, 2)),
    vector(2, Buffer.from([0x13, 0x01])),
    vector(1, Buffer.from([0])),
    vector(2, Buffer.concat(extensions)),
  ]);
  const handshake = Buffer.concat([Buffer.from([1]), vector(3, body)]);
  const records: Buffer[] = [];
  for (let at = 0; at < handshake.length; at += recordBytes)
    records.push(
      Buffer.concat([Buffer.from([22, 3, 1]), vector(2, handshake.subarray(at, at + recordBytes))]),
    );
  return Buffer.concat(records);
}

function vector(lengthBytes: number, content: Buffer): Buffer {
  const length = Buffer.alloc(lengthBytes);
  length.writeUIntBE(content.length, 0, lengthBytes);
  return Buffer.concat([length, content]);
}

function extension(type: number, content: Buffer): Buffer {
  const head = Buffer.alloc(2);
  head.writeUInt16BE(type);
  return Buffer.concat([head, vector(2, content)]);
}
