/** Merged layers and the contents of folders, for tests of images. */
import { lstatSync, readFileSync, readdirSync, readlinkSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { type Item, sha256 } from '@releap/testing/oci';
import { DEFAULT_IMAGE_LIMITS } from '../../src/image/image-limits.ts';
import type { ImageLimits } from '../../src/image/image-limits.ts';
import type { TreeNode } from '../../src/image/layer-tree.ts';
import { checkCount, type MergedImage, mergeUnpacked } from '../../src/image/oci-flatten.ts';
import { type LayerSource, type UnpackedLayer, unpackLayer } from '../../src/image/unpack-layer.ts';

export const dir = (name: string, mode = 0o755): Item => ({ name, type: 'directory', mode });
export const file = (name: string, content = name): Item => ({ name, content });
export const link = (name: string, linkname: string): Item => ({ name, type: 'link', linkname });
export const symlink = (name: string, linkname: string): Item => ({ name, type: 'symlink', linkname });

/** Writes layers as files and merges them. */
export async function mergeTars(
  dir: string,
  tars: readonly Buffer[],
  limits: Partial<ImageLimits> = {},
): Promise<MergedImage> {
  const layers: LayerSource[] = [];
  for (const [index, tar] of tars.entries()) {
    const file = path.join(dir, `blob-${index}`);
    await writeFile(file, tar);
    layers.push({ path: file, digest: sha256(tar), diffId: sha256(tar) });
  }
  return await mergeLayers(dir, layers, limits);
}

/** Unpacks layers into a folder, bottom first, and merges them. */
export async function mergeLayers(
  dir: string,
  layers: readonly LayerSource[],
  limits: Partial<ImageLimits> = {},
): Promise<MergedImage> {
  const all = { ...DEFAULT_IMAGE_LIMITS, ...limits };
  checkCount(layers.length, all);
  const budget = { left: all.uncompressedBytes, total: all.uncompressedBytes };
  const unpacked: UnpackedLayer[] = [];
  try {
    for (const [index, layer] of layers.entries())
      unpacked.push(await unpackLayer(layer, path.join(dir, `layer-${index}.tar`), budget));
    return await mergeUnpacked(unpacked, all);
  } catch (error) {
    for (const layer of unpacked) layer[Symbol.dispose]();
    throw error;
  }
}

/** What a folder holds, in a form that can be compared: hard links as groups, content as text. */
export function describeFolder(root: string): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  const firstName = new Map<number, string>();
  const visit = (relative: string): void => {
    const full = path.join(root, relative);
    const facts = lstatSync(full);
    const mode = (facts.mode & 0o7777).toString(8);
    const owner = `${facts.uid}:${facts.gid}`;
    const name = relative === '' ? '/' : relative;
    if (facts.isDirectory()) {
      result[name] = `directory ${mode} ${owner}`;
      for (const child of readdirSync(full).sort()) visit(path.join(relative, child));
    } else if (facts.isSymbolicLink()) {
      result[name] = `symlink ${readlinkSync(full)}`;
    } else if (facts.isFile()) {
      const first = firstName.get(facts.ino);
      if (facts.nlink > 1 && first !== undefined) result[name] = `link ${first}`;
      else
        result[name] =
          `file ${mode} ${owner} ${Math.floor(facts.mtimeMs / 1000)} ${readFileSync(full, 'latin1')}`;
      firstName.set(facts.ino, first ?? name);
    } else {
      result[name] = `other ${mode} ${owner} ${facts.rdev}`;
    }
  };
  visit('');
  return result;
}

/** Every name of a tree, folders before their content. */
function* walk(folder: TreeNode, prefix = ''): Generator<[name: string, node: TreeNode], void, void> {
  const children = [...(folder.children ?? [])].sort(([a], [b]) => (a < b ? -1 : 1));
  for (const [name, node] of children) {
    yield [prefix + name, node];
    yield* walk(node, `${prefix}${name}/`);
  }
}

/** name → what it is. */
export function listing({ root, readLayer }: MergedImage): Record<string, string> {
  const result: Record<string, string> = {};
  const names = new Map<TreeNode, string>();
  for (const [name, node] of walk(root)) {
    const first = node.type === 'file' && node.names > 1 ? names.get(node) : undefined;
    names.set(node, first ?? name);
    if (first !== undefined) result[name] = `link ${first}`;
    else if (node.type === 'symlink') result[name] = `symlink ${node.link}`;
    else if (node.type === 'directory') result[name] = `directory ${node.mode.toString(8)}`;
    else {
      const content = Buffer.alloc(node.size);
      for (const { at, offset, length } of node.extents)
        readLayer(node.layer, content.subarray(at, at + length), offset);
      result[name] = `${node.type} ${content.toString()}`;
    }
  }
  return result;
}
