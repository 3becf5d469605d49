import { randomUUID } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { lstat, open, rename, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { pack, type Pack } from 'tar-stream';
import { type Header, HEADER_NAME, type Manifest, MANIFEST_NAME, PART_BYTES, Sealer } from './format.ts';

export interface ArchiveWriter {
  /** Splits a stream into parts `<name>/<number>`; one at least. */
  stream(name: string, source: AsyncIterable<Uint8Array>): Promise<void>;
}

/**
 * Writes a backup. A file gets its name when it is complete and durable; after a failure nothing of it is left.
 * @param target a path, or `-` for standard output
 * @returns the size of the file
 */
export async function writeArchive(
  target: string,
  header: Header,
  key: Buffer | undefined,
  write: (archive: ArchiveWriter) => Promise<Manifest>,
): Promise<number | undefined> {
  if (target === '-') {
    await packInto(process.stdout, header, key, write);
    return undefined;
  }
  const file = path.resolve(target);
  await assertAbsent(file);
  const partial = `${file}.${randomUUID()}.partial`;
  try {
    const stream = createWriteStream(partial, { flags: 'wx', mode: 0o600 });
    await packInto(stream, header, key, write);
    await sync(partial);
    const { size } = await stat(partial);
    await assertAbsent(file);
    await rename(partial, file);
    await sync(path.dirname(file));
    return size;
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}

async function sync(file: string): Promise<void> {
  await using handle = await open(file, 'r');
  await handle.sync();
}

async function assertAbsent(file: string): Promise<void> {
  const found = await lstat(file).catch(() => undefined);
  if (found !== undefined) throw new Error(`${file} exists: a backup replaces nothing`);
}

async function packInto(
  target: NodeJS.WritableStream,
  header: Header,
  key: Buffer | undefined,
  write: (archive: ArchiveWriter) => Promise<Manifest>,
): Promise<void> {
  const archive = pack();
  const sent = pipeline(archive as unknown as NodeJS.ReadableStream, target);
  const written = (async () => {
    const text = Buffer.from(`${JSON.stringify(header, null, 2)}\n`);
    const mtime = new Date(header.created_at);
    await entry(archive, HEADER_NAME, text, mtime);
    const sealer = new Sealer(text, key);
    const part = async (name: string, content: Uint8Array): Promise<void> =>
      entry(archive, name, await sealer.close(name, content), mtime);
    const manifest = await write({
      async stream(name, source) {
        let number = 0;
        for await (const content of inParts(source))
          await part(`${name}/${String(number++).padStart(6, '0')}`, content);
      },
    });
    await part(MANIFEST_NAME, Buffer.from(JSON.stringify(manifest)));
    archive.finalize();
  })();
  // A failure of either ends both; the first is the reason of the other.
  written.catch((error: unknown) => archive.destroy(error as Error));
  const first = Promise.race([
    written.then(
      () => undefined,
      (error: unknown) => ({ error }),
    ),
    sent.then(
      () => undefined,
      (error: unknown) => ({ error }),
    ),
  ]);
  const failure = await first;
  if (failure !== undefined) {
    await Promise.allSettled([written, sent]);
    throw failure.error;
  }
  await Promise.all([written, sent]);
}

/** Resolves when there is space for the next one. */
async function entry(archive: Pack, name: string, content: Buffer, mtime: Date): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    // After a failed write to the target it is destroyed, and calls no callback.
    const destroyed = (): void => reject(new Error('the backup cannot be written'));
    if ((archive as unknown as { destroyed: boolean }).destroyed) return destroyed();
    archive.once('close', destroyed);
    const sink = archive.entry({ name, size: content.length, mode: 0o600, mtime }, content, (error) => {
      archive.off('close', destroyed);
      if (error) reject(error);
      else resolve();
    });
    // The callback has it.
    sink.on('error', () => undefined);
  });
}

async function* inParts(source: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  let chunks: Uint8Array[] = [];
  let bytes = 0;
  let isEmpty = true;
  for await (const chunk of source) {
    chunks.push(chunk);
    bytes += chunk.length;
    if (bytes < PART_BYTES) continue;
    yield Buffer.concat(chunks);
    isEmpty = false;
    chunks = [];
    bytes = 0;
  }
  if (bytes > 0 || isEmpty) yield Buffer.concat(chunks);
}
