/** A multipart form that is encoded while its file is produced: `FormData` wants all of a file first. */
import { randomUUID } from 'node:crypto';
import { Readable } from 'node:stream';
import type { ReadableStream } from 'node:stream/web';

export interface EncodedForm {
  contentType: string;
  body: ReadableStream<Uint8Array>;
}

/** The file is the last part, so that the service can refuse the fields before it arrives. */
export function encodeForm(
  fields: Readonly<Record<string, string | undefined>>,
  file: { name: string; filename: string; contentType: string; content: AsyncIterable<Uint8Array> },
): EncodedForm {
  const boundary = `rlp-${randomUUID()}`;
  const head = (disposition: string): string =>
    `--${boundary}\r\ncontent-disposition: form-data; ${disposition}\r\n`;
  async function* encode(): AsyncGenerator<Uint8Array> {
    for (const [name, value] of Object.entries(fields))
      if (value !== undefined) yield Buffer.from(`${head(`name="${name}"`)}\r\n${value}\r\n`);
    yield Buffer.from(
      `${head(`name="${file.name}"; filename="${file.filename}"`)}content-type: ${file.contentType}\r\n\r\n`,
    );
    yield* file.content;
    yield Buffer.from(`\r\n--${boundary}--\r\n`);
  }
  return {
    contentType: `multipart/form-data; boundary=${boundary}`,
    body: Readable.toWeb(Readable.from(encode())) as ReadableStream<Uint8Array>,
  };
}
