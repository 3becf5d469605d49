/**
 * From a stack of unpacked layers to one merged tree: `LayerTree` applies the layers' headers in memory, bodies stay in the
 * archives. The result is measured before anything is written.
 */
import { ImageError } from './image-error.ts';
import type { ImageLimits } from './image-limits.ts';
import { LayerTree } from './layer-tree.ts';
import type { TreeNode } from './layer-tree.ts';
import { layerReader, type ReadLayer } from './squashfs/write-squashfs.ts';
import { readEntries } from './layer-entries.ts';
import { readTar, type TarEntry } from './tar-read.ts';
import type { UnpackedLayer } from './unpack-layer.ts';

type MergeLimits = Pick<
  ImageLimits,
  'layers' | 'uncompressedBytes' | 'entries' | 'pathBytes' | 'nameBytes' | 'metadataBytes' | 'fileBytes'
>;

/** A merged tree with its bodies. Dispose of it to close the layers. */
export interface MergedImage extends Disposable {
  root: TreeNode;
  /** Names in the result. */
  entries: number;
  /** Bytes of all files. */
  bytes: number;
  readLayer: ReadLayer;
}

/** Most different owners and groups that a squashfs image can hold. */
const IDS_MAX = 65_535;

/** @throws ImageError `too-large` */
export function checkCount(layers: number, limits: Pick<MergeLimits, 'layers'>): void {
  if (layers <= limits.layers) return;
  throw new ImageError('too-large', `the image has ${layers} layers, at most ${limits.layers} are allowed`);
}

/**
 * Merges layers, which the result takes over.
 * @param layers bottom first
 * @param onEntries is given what was read of a layer that has no index
 * @throws ImageError
 */
export async function mergeUnpacked(
  layers: readonly UnpackedLayer[],
  limits: MergeLimits,
  onEntries?: (index: number, entries: readonly TarEntry[]) => void,
): Promise<MergedImage> {
  const tree = new LayerTree(limits);
  for (const [index, { fd, size, entries: known }] of layers.entries()) {
    try {
      const entries = known ?? readEntries(fd, size);
      tree.apply(index, () => entries ?? readTar(fd, size));
      if (known === undefined && entries !== undefined) onEntries?.(index, entries);
    } catch (error) {
      if (error instanceof ImageError)
        throw new ImageError(error.code, `layer ${index + 1} of ${layers.length}: ${error.message}`);
      throw error;
    }
    // What ends this process gets its turn between the layers.
    await new Promise((resolve) => setImmediate(resolve));
  }
  return {
    root: tree.root,
    ...measure(tree.root, limits),
    readLayer: layerReader(layers.map(({ fd }) => fd)),
    [Symbol.dispose]: () => {
      for (const layer of layers) layer[Symbol.dispose]();
    },
  };
}

/** Every name of the tree with its length. */
function* walk(root: TreeNode): Generator<[length: number, node: TreeNode], void, void> {
  const folders: [prefix: number, folder: TreeNode][] = [[0, root]];
  for (let next = folders.pop(); next; next = folders.pop()) {
    const [prefix, folder] = next;
    for (const [name, node] of folder.children ?? []) {
      const length = prefix + name.length;
      yield [length, node];
      if (node.children) folders.push([length + 1, node]);
    }
  }
}

/** Finds out before anything is written whether the result keeps within the limits. */
function measure(root: TreeNode, limits: MergeLimits): { entries: number; bytes: number } {
  let entries = 1;
  let bytes = 0;
  const ids = new Set([root.uid, root.gid]);
  const shared = new Set<TreeNode>();
  for (const [length, node] of walk(root)) {
    entries += 1;
    if (length > limits.pathBytes) {
      throw new ImageError(
        'invalid-image',
        `a name in the image has ${length} bytes, at most ${limits.pathBytes} are allowed`,
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
