import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { extract } from 'tar-stream';
import { Check } from 'typebox/value';
import { FORMAT, Header, HEADER_NAME, Manifest, MANIFEST_NAME, PART_BYTES_MAX, Sealer } from './format.ts';

const HEADER_BYTES_MAX = 64 * 1024;

/** Consecutive parts of one name, without their numbers. */
export interface ArchiveStream {
  name: string;
  content: AsyncIterable<Buffer>;
}

export interface ArchiveReader {
  readonly header: Header;
  readonly manifest: Manifest;
  /** Everything except the manifest, in the order in which it was written. What a stream has left is skipped. */
  streams(): AsyncGenerator<ArchiveStream>;
}

/** @throws when the file is no backup of a form that this version knows */
export async function readHeader(file: string): Promise<{ header: Header; bytes: Buffer }> {
  for await (const { name, content } of entriesOf(file, HEADER_BYTES_MAX)) {
    if (name !== HEADER_NAME) break;
    let value: unknown;
    try {
      value = JSON.parse(content.toString('utf8'));
    } catch {
      break;
    }
    const { format } = value as { format?: unknown };
    if (typeof format === 'number' && format > FORMAT)
      throw new Error(
        `${file} has format ${format}, and this version reads ${FORMAT}: it was made by a newer version`,
      );
    if (!Check(Header, value)) break;
    return { header: value, bytes: content };
  }
  throw new Error(`${file} is not a backup of releap`);
}

/**
 * Reads all of a backup and checks each of its parts, so that nothing is changed by a damaged one.
 * @throws when a part is missing, damaged, or sealed with another key
 */
export async function openArchive(file: string, key: Buffer | undefined): Promise<ArchiveReader> {
  const { header, bytes } = await readHeader(file);
  let manifest: Manifest | undefined;
  for await (const { name, content } of partsOf(file, bytes, key)) {
    if (manifest !== undefined) throw new Error('the backup is damaged: there is more after its end');
    if (name === MANIFEST_NAME) manifest = parseManifest(content);
  }
  if (manifest === undefined) throw new Error('the backup is incomplete: its end is missing');
  return { header, manifest, streams: () => streamsOf(file, bytes, key) };
}

function parseManifest(content: Buffer): Manifest {
  const value: unknown = JSON.parse(content.toString('utf8'));
  if (!Check(Manifest, value))
    throw new Error('the manifest of the backup is not one that this version knows');
  return value;
}

interface Entry {
  name: string;
  content: Buffer;
}

async function* streamsOf(
  file: string,
  header: Buffer,
  key: Buffer | undefined,
): AsyncGenerator<ArchiveStream> {
  const parts = partsOf(file, header, key);
  try {
    let next = await parts.next();
    while (next.done !== true) {
      const name = streamName(next.value.name);
      if (name === MANIFEST_NAME) return;
      async function* content(): AsyncGenerator<Buffer> {
        while (next.done !== true && streamName(next.value.name) === name) {
          const part = next.value;
          next = await parts.next();
          yield part.content;
        }
      }
      yield { name, content: content() };
      while (next.done !== true && streamName(next.value.name) === name) next = await parts.next();
    }
  } finally {
    await parts.return(undefined);
  }
}

const streamName = (part: string): string => part.replace(/\/\d{6,}$/, '');

async function* partsOf(
  file: string,
  header: Buffer,
  key: Buffer | undefined,
): AsyncGenerator<Entry, undefined> {
  const sealer = new Sealer(header, key);
  let isFirst = true;
  for await (const { name, content } of entriesOf(file, PART_BYTES_MAX)) {
    if (isFirst) isFirst = false;
    else yield { name, content: await sealer.open(name, content) };
  }
  return undefined;
}

/** @throws for a file that is cut off, or not an archive */
async function* entriesOf(file: string, bytesMax: number): AsyncGenerator<Entry> {
  const archive = extract();
  const fed = pipeline(createReadStream(file), archive as unknown as NodeJS.WritableStream);
  fed.catch(() => undefined);
  try {
    for await (const entry of archive as AsyncIterable<
      AsyncIterable<Buffer> & { header: { name: string; size?: number } }
    >) {
      const { name, size = 0 } = entry.header;
      if (size > bytesMax) throw new Error(`part ${name} has ${size} bytes`);
      const chunks: Buffer[] = [];
      for await (const chunk of entry) chunks.push(chunk);
      yield { name, content: Buffer.concat(chunks) };
    }
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code !== undefined || message.startsWith('the backup')) throw error;
    throw new Error(`${file} is damaged or no backup: ${message}`, { cause: error });
  } finally {
    (archive as unknown as { destroy(): void }).destroy();
  }
}
