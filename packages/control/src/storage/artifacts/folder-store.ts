/**
 * The store in a folder:
 *
 *   <folder>/sha256/<first two digits>/<hex>   a blob; appears by rename when it is durable, and never changes
 *   <folder>/incoming/<uuid>                   an upload in progress
 */
import { randomUUID } from 'node:crypto';
import { mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { BlobError, hexOf, isBlobDigest, type Blob, type BlobStore, type PutOptions } from './blob-store.ts';
import { verifyContent } from './verify-content.ts';

export class FolderStore implements BlobStore {
  readonly #blobs: string;
  readonly #incoming: string;

  /** @param folder absolute; created by the first upload if it is missing */
  constructor(folder: string) {
    this.#blobs = join(folder, 'sha256');
    this.#incoming = join(folder, 'incoming');
  }

  async put(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob> {
    const temporary = join(this.#incoming, randomUUID());
    try {
      await mkdir(this.#incoming, { recursive: true, mode: 0o700 });
      const blob = await writeVerified(temporary, source, options);
      const folder = this.#shard(blob.digest);
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await rename(temporary, this.#path(blob.digest));
      await syncFolder(folder);
      await syncFolder(this.#blobs);
      return blob;
    } catch (error) {
      await rm(temporary, { force: true });
      throw explain(error);
    }
  }

  async get(digest: string, signal?: AbortSignal): Promise<{ bytes: number; content: Readable } | undefined> {
    const file = await open(this.#path(digest), 'r').catch(undefinedIfMissing);
    if (file === undefined) return undefined;
    const { size } = await file.stat();
    return { bytes: size, content: file.createReadStream(signal === undefined ? {} : { signal }) };
  }

  async stat(digest: string): Promise<{ bytes: number } | undefined> {
    const found = await stat(this.#path(digest)).catch(undefinedIfMissing);
    return found && { bytes: found.size };
  }

  async delete(digest: string): Promise<void> {
    await rm(this.#path(digest), { force: true });
  }

  async *list(): AsyncIterable<Blob & { modifiedAt: Date }> {
    for (const shard of await namesIn(this.#blobs)) {
      for (const hex of await namesIn(join(this.#blobs, shard))) {
        const digest = `sha256:${hex}`;
        if (!isBlobDigest(digest)) continue;
        const found = await stat(this.#path(digest)).catch(undefinedIfMissing);
        if (found !== undefined) yield { digest, bytes: found.size, modifiedAt: found.mtime };
      }
    }
  }

  async removeUnfinished(before: Date): Promise<number> {
    let removed = 0;
    for (const name of await namesIn(this.#incoming)) {
      const path = join(this.#incoming, name);
      const found = await stat(path).catch(undefinedIfMissing);
      if (found === undefined || found.mtime >= before) continue;
      await rm(path, { force: true });
      removed += 1;
    }
    return removed;
  }

  #shard(digest: string): string {
    return join(this.#blobs, hexOf(digest).slice(0, 2));
  }

  #path(digest: string): string {
    return join(this.#shard(digest), hexOf(digest));
  }
}

/** Writes checked content to a new file and makes it durable. The caller removes the file when this fails. */
export async function writeVerified(
  path: string,
  source: AsyncIterable<Uint8Array>,
  options: PutOptions,
): Promise<Blob> {
  let result: Blob | undefined;
  const file = await open(path, 'wx', 0o600);
  try {
    const checked = { ...options, onVerified: undefined };
    for await (const chunk of verifyContent(source, checked, (blob) => (result = blob)))
      await file.writeFile(chunk);
    await file.sync();
  } finally {
    await file.close();
  }
  if (result === undefined) throw new Error('the content has no end');
  await options.onVerified?.(result);
  return result;
}

/** Makes the names in a folder durable. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

async function namesIn(folder: string): Promise<string[]> {
  return (await readdir(folder).catch(undefinedIfMissing)) ?? [];
}

function explain(error: unknown): unknown {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== 'ENOSPC' && code !== 'EDQUOT') return error;
  return new BlobError('no-space', 'no space is left in the store', { cause: error });
}

function undefinedIfMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') throw error;
}
