/** DNS messages on a TCP stream: each after its length in two bytes (RFC 1035 section 4.2.2). */

export function frame(message: Buffer): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(message.length);
  return Buffer.concat([length, message]);
}

/** Cuts a stream into messages. Holds at most one unfinished message, so 64 KiB. */
export class FrameReader {
  #rest: Buffer = Buffer.alloc(0);

  push(chunk: Buffer): Buffer[] {
    let bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    const messages: Buffer[] = [];
    while (bytes.length >= 2) {
      const end = 2 + bytes.readUInt16BE(0);
      if (bytes.length < end) break;
      messages.push(bytes.subarray(2, end));
      bytes = bytes.subarray(end);
    }
    this.#rest = Buffer.from(bytes);
    return messages;
  }
}
