/**
 * From a stack of layer blobs to one tar stream of the merged tree.
 *
 * 1. Each layer is unpacked into one spool file (named by us) while its sha256 is compared with the image's `diff_ids`;
 *    a layer that is stored plain is only checked. Size limits hold while unpacking, so a bomb stops early.
 * 2. `LayerTree` applies the layers' headers in memory.
 * 3. The tree is written out in byte order of its names, bodies being copied from the spool files by position. The same
 *    layers always give the same stream.
 */
import { createHash } from 'node:crypto';
import {
  closeSync,
  constants,
  createReadStream,
  createWriteStream,
  fstatSync,
  openSync,
  readSync,
} from 'node:fs';
import { open, rm } from 'node:fs/promises';
import path from 'node:path';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createZstdDecompress } from 'node:zlib';
import { ImageError, show, toImageError } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import { LayerTree } from './layer-tree.ts';
import type { TreeNode } from './layer-tree.ts';
import { readTar } from './tar-read.ts';
import { TAR_END, tarHeader, tarPadding } from './tar-write.ts';

export interface LayerSource {
  /** The blob's file. */
  path: string;
  /** How messages name it: its digest. */
  digest: string;
  /** `sha256:…` of the unpacked archive, from the image's configuration. */
  diffId: string;
}

export type MergeLimits = Pick<
  ImageLimits,
  'layers' | 'uncompressedBytes' | 'entries' | 'pathBytes' | 'nameBytes' | 'metadataBytes' | 'fileBytes'
>;

export interface MergeOptions {
  /** Where spool files go; the caller removes it. */
  workDir: string;
  limits: MergeLimits;
  signal?: AbortSignal | undefined;
  /** Layers done so far. */
  onLayer?: (done: number, total: number) => void;
}

/** A merged tree with its bodies. Dispose of it to close and remove the spool files. */
export interface MergedImage extends AsyncDisposable {
  /** Mode, owner and time of the root folder itself, which a tar stream cannot carry for every reader. */
  root: Pick<TreeNode, 'mode' | 'uid' | 'gid' | 'mtime'>;
  /** Names in the result. */
  entries: number;
  /** Bytes of all files. */
  bytes: number;
  /** The archive. `onBytes` gets the sum of what has been given out. */
  stream(onBytes?: (bytes: number) => void): Generator<Buffer, void, void>;
}

/** Most different owners and groups that a squashfs image can hold. */
const IDS_MAX = 65_535;

/** @throws ImageError: `lying-registry` when a layer is not what its diff_id says, `invalid-image`, `too-large`. */
export async function mergeLayers(
  layers: readonly LayerSource[],
  options: MergeOptions,
): Promise<MergedImage> {
  const { limits } = options;
  if (layers.length > limits.layers) {
    throw new ImageError(
      'too-large',
      `the image has ${layers.length} layers, at most ${limits.layers} are allowed`,
    );
  }
  const spools: Spool[] = [];
  const dispose = async (): Promise<void> => {
    for (const spool of spools) {
      closeSync(spool.fd);
      if (spool.temporary) await rm(spool.path, { force: true });
    }
    spools.length = 0;
  };
  try {
    const tree = new LayerTree(limits);
    let left = limits.uncompressedBytes;
    for (const [index, layer] of layers.entries()) {
      const spool = await spoolLayer(layer, path.join(options.workDir, `layer-${index}.tar`), left, options);
      spools.push(spool);
      left -= spool.size;
      try {
        tree.apply(index, () => readTar(spool.fd, spool.size));
      } catch (error) {
        if (error instanceof ImageError)
          throw new ImageError(error.code, `layer ${index + 1} of ${layers.length}: ${error.message}`);
        throw error;
      }
      options.signal?.throwIfAborted();
      options.onLayer?.(index + 1, layers.length);
    }
    const totals = measure(tree.root, limits);
    return {
      root: tree.root,
      ...totals,
      stream: (onBytes) => writeTree(tree.root, spools, onBytes),
      [Symbol.asyncDispose]: dispose,
    };
  } catch (error) {
    await dispose();
    throw toImageError(error, 'merging the layers');
  }
}

interface Spool {
  fd: number;
  size: number;
  path: string;
  temporary: boolean;
}

async function spoolLayer(
  layer: LayerSource,
  target: string,
  most: number,
  options: MergeOptions,
): Promise<Spool> {
  const kind = await compressionOf(layer.path);
  const hash = createHash('sha256');
  let size = 0;
  const meter = new Transform({
    transform(chunk: Buffer, _encoding, done): void {
      size += chunk.length;
      if (size > most) {
        done(
          new ImageError(
            'too-large',
            `the image's layers unpack to more than ${options.limits.uncompressedBytes} bytes`,
          ),
        );
        return;
      }
      hash.update(chunk);
      done(null, chunk);
    },
  });
  const source = createReadStream(layer.path, { highWaterMark: CHUNK });
  const signal = options.signal === undefined ? {} : { signal: options.signal };
  try {
    if (kind === 'none') {
      await pipeline(source, meter, discard, signal);
    } else {
      const unpack =
        kind === 'gzip' ? createGunzip({ chunkSize: CHUNK }) : createZstdDecompress({ chunkSize: CHUNK });
      await pipeline(
        source,
        unpack,
        meter,
        createWriteStream(target, { mode: 0o600, highWaterMark: 4 * CHUNK }),
        signal,
      );
    }
  } catch (error) {
    await rm(target, { force: true });
    const { code } = error as NodeJS.ErrnoException;
    if (code?.startsWith('Z_') || code?.startsWith('ZSTD_')) {
      throw new ImageError('invalid-image', `layer ${layer.digest} is damaged: ${(error as Error).message}`, {
        cause: error,
      });
    }
    throw toImageError(error, `unpacking layer ${layer.digest}`);
  }
  const diffId = `sha256:${hash.digest('hex')}`;
  if (diffId !== layer.diffId) {
    await rm(target, { force: true });
    throw new ImageError(
      'lying-registry',
      `layer ${layer.digest} unpacks to ${diffId}, but the image's configuration says ${show(layer.diffId)}`,
    );
  }
  const file = kind === 'none' ? layer.path : target;
  const fd = openSync(file, constants.O_RDONLY);
  return { fd, size: fstatSync(fd).size, path: file, temporary: kind !== 'none' };
}

const CHUNK = 256 * 1024;

async function discard(chunks: AsyncIterable<Buffer>): Promise<void> {
  for await (const _chunk of chunks) {
    // Only measured and hashed on the way.
  }
}

/** By content: media types are often wrong about this, and `diff_ids` catches what is neither. */
async function compressionOf(file: string): Promise<'gzip' | 'zstd' | 'none'> {
  await using handle = await open(file, 'r');
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(4), 0, 4, 0);
  if (bytesRead >= 2 && buffer.readUInt16BE(0) === 0x1f8b) return 'gzip';
  if (bytesRead >= 4 && buffer.readUInt32BE(0) === 0x28b52ffd) return 'zstd';
  return 'none';
}

/** Every name of the tree in byte order, folders before their content. */
function* walk(root: TreeNode): Generator<[name: string, node: TreeNode], void, void> {
  const stack: { prefix: string; rest: [string, TreeNode][] }[] = [{ prefix: '', rest: sorted(root) }];
  for (let top = stack.at(-1); top; top = stack.at(-1)) {
    const next = top.rest.pop();
    if (!next) {
      stack.pop();
      continue;
    }
    const name = top.prefix + next[0];
    yield [name, next[1]];
    if (next[1].children) stack.push({ prefix: `${name}/`, rest: sorted(next[1]) });
  }
}

/** Children, the last one first. */
function sorted(node: TreeNode): [string, TreeNode][] {
  return [...(node.children ?? [])].sort(([a], [b]) => (a < b ? 1 : -1));
}

/** Finds out before anything is written whether the result keeps within the limits. */
function measure(root: TreeNode, limits: MergeLimits): { entries: number; bytes: number } {
  let entries = 1;
  let bytes = 0;
  const ids = new Set([root.uid, root.gid]);
  const shared = new Set<TreeNode>();
  for (const [name, node] of walk(root)) {
    entries += 1;
    if (name.length > limits.pathBytes) {
      throw new ImageError(
        'invalid-image',
        `a name in the image has ${name.length} bytes, at most ${limits.pathBytes} are allowed`,
      );
    }
    if (node.names > 1) {
      if (shared.has(node)) continue;
      shared.add(node);
    }
    bytes += node.size;
    if (bytes > limits.uncompressedBytes) {
      throw new ImageError('too-large', `the image's files have more than ${limits.uncompressedBytes} bytes`);
    }
    ids.add(node.uid);
    ids.add(node.gid);
    if (ids.size > IDS_MAX) {
      throw new ImageError(
        'too-large',
        `the image's files belong to more than ${IDS_MAX} different users and groups`,
      );
    }
  }
  return { entries, bytes };
}

function* writeTree(
  root: TreeNode,
  spools: readonly Spool[],
  onBytes?: (bytes: number) => void,
): Generator<Buffer, void, void> {
  const written = new Map<TreeNode, string>();
  let total = 0;
  let batch = Buffer.allocUnsafe(CHUNK);
  let filled = 0;

  function* put(length: number, fill: (into: Buffer, from: number) => void): Generator<Buffer, void, void> {
    for (let done = 0; done < length; ) {
      const count = Math.min(length - done, CHUNK - filled);
      fill(batch.subarray(filled, filled + count), done);
      filled += count;
      done += count;
      if (filled === CHUNK) yield flush();
    }
  }
  function flush(): Buffer {
    const full = batch.subarray(0, filled);
    total += filled;
    onBytes?.(total);
    batch = Buffer.allocUnsafe(CHUNK);
    filled = 0;
    return full;
  }
  const bytes = (data: Buffer): Generator<Buffer, void, void> =>
    put(data.length, (into, from) => data.copy(into, 0, from, from + into.length));
  const zeros = (length: number): Generator<Buffer, void, void> => put(length, (into) => into.fill(0));

  for (const [name, node] of walk(root)) {
    // Only files are linked; every other kind is as good written twice.
    const first = node.names > 1 && node.type === 'file' ? written.get(node) : undefined;
    yield* bytes(tarHeader(name, node, first));
    if (first !== undefined) continue;
    if (node.names > 1) written.set(node, name);
    let at = 0;
    for (const extent of node.extents) {
      yield* zeros(extent.at - at);
      const fd = spools[node.layer]?.fd ?? -1;
      yield* put(extent.length, (into, from) => readFully(fd, into, extent.offset + from));
      at = extent.at + extent.length;
    }
    yield* zeros(node.size - at);
    yield* bytes(tarPadding(node.size));
  }
  yield* bytes(TAR_END);
  yield flush();
}

function readFully(fd: number, into: Buffer, position: number): void {
  for (let done = 0; done < into.length; ) {
    const got = readSync(fd, into, done, into.length - done, position + done);
    if (got === 0) throw new ImageError('failed', 'a spooled layer became shorter while it was read');
    done += got;
  }
}
