/** Layers of our own making: a few files, folders and links as one tar archive. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { type Header, pack } from 'tar-stream';
import type { LayerSource } from '../unpack-layer.ts';

export type LayerItem =
  | { path: string; directory: true; mode?: number }
  | { path: string; content: Buffer | string; mode?: number }
  | { path: string; symlink: string };

/** Writes `items`, in order and owned by root, as a layer to `file`. The same items always give the same bytes. */
export async function composeLayer(file: string, items: readonly LayerItem[]): Promise<LayerSource> {
  const archive = pack();
  for (const item of items) {
    const content = 'content' in item ? item.content : '';
    archive.entry({ name: item.path, mtime: new Date(0), uid: 0, gid: 0, ...kindOf(item) }, content);
  }
  archive.finalize();
  await writeFile(file, await buffer(archive), { mode: 0o600 });
  return await layerOf(file);
}

/** A plain tar archive as a layer, named by its content. */
export async function layerOf(file: string, signal?: AbortSignal): Promise<LayerSource> {
  const hash = createHash('sha256');
  await pipeline(
    createReadStream(file, { highWaterMark: 256 * 1024 }),
    async (chunks) => {
      for await (const chunk of chunks) hash.update(chunk as Buffer);
    },
    signal === undefined ? {} : { signal },
  );
  const digest = `sha256:${hash.digest('hex')}`;
  return { path: file, digest, diffId: digest };
}

function kindOf(item: LayerItem): Partial<Header> {
  if ('symlink' in item) return { type: 'symlink', mode: 0o777, linkname: item.symlink };
  if ('directory' in item) return { type: 'directory', mode: item.mode ?? 0o755 };
  return { type: 'file', mode: item.mode ?? 0o644 };
}
