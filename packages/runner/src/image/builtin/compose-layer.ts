/** Layers of our own making: a few files, folders and links as one tar archive. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import type { TreeNode } from '../layer-tree.ts';
import type { LayerSource } from '../oci-flatten.ts';
import { TAR_END, tarHeader, tarPadding } from '../tar-write.ts';

export type LayerItem =
  | { path: string; directory: true; mode?: number }
  | { path: string; content: Buffer | string; mode?: number }
  | { path: string; symlink: string };

/** Writes `items`, in order and owned by root, as a layer to `file`. The same items always give the same bytes. */
export async function composeLayer(file: string, items: readonly LayerItem[]): Promise<LayerSource> {
  const blocks: Buffer[] = [];
  for (const item of items) {
    const content = 'content' in item ? Buffer.from(item.content) : Buffer.alloc(0);
    blocks.push(tarHeader(item.path, nodeOf(item, content.length)), content, tarPadding(content.length));
  }
  blocks.push(TAR_END);
  await writeFile(file, Buffer.concat(blocks), { mode: 0o600 });
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

function nodeOf(item: LayerItem, size: number): TreeNode {
  const type = 'symlink' in item ? 'symlink' : 'directory' in item ? 'directory' : 'file';
  const mode = 'symlink' in item ? 0o777 : (item.mode ?? (type === 'directory' ? 0o755 : 0o644));
  return {
    type,
    mode,
    uid: 0,
    gid: 0,
    mtime: 0,
    size,
    extents: [],
    layer: 0,
    link: 'symlink' in item ? item.symlink : '',
    devMajor: 0,
    devMinor: 0,
    names: 1,
  };
}
