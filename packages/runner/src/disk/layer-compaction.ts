import { randomUUID } from 'node:crypto';
import { readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import {
  chainPath,
  checkChain,
  DISK_FILE,
  isNewer,
  identityOf,
  LAYERS_KEPT,
  mergedLayer,
  saveChain,
} from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { contentId } from './lineage.ts';
import { emptyQcow2Bytes } from './qcow2.ts';
import { mergeLayers } from './qcow2-merge.ts';
import { checkSpace } from './check-space.ts';

/** Number of lowest layers that need not be merged. */
const LOWEST_KEPT = LAYERS_KEPT / 2;
/** A layer is merged when its size is at most this multiple of all layers above it. */
const RATIO = 2;
const BLOCK_BYTES = 512;

/**
 * Compacts the layers of a disk that is not in use: each layer costs the VMMs that open it time and memory. The merged
 * layers' files remain, for VMMs that are opening them.
 * @returns the compacted chain
 * @throws when it fails; the disk is unchanged
 */
export async function compactChain(chain: DiskChain): Promise<DiskChain> {
  const compacted = await writeCompacted(chain);
  await saveChain(compacted, true);
  return compacted;
}

/** As `compactChain`, without writing the manifest. */
export async function writeCompacted(chain: DiskChain, signal?: AbortSignal): Promise<DiskChain> {
  await checkChain(chain);
  const { layers, bytes } = chain;
  const sizes = await Promise.all(
    layers.map(async (name) => (await stat(chainPath(chain, name))).blocks * BLOCK_BYTES),
  );
  const from = lowestToMerge(sizes);
  const below = layers.slice(0, from);
  const merged = layers.slice(from);
  // Guests would block on ENOSPC if this filled the file system.
  await checkSpace(
    chain.folder,
    sizes.slice(from).reduce((sum, size) => sum + size, 0),
  );
  const name = mergedLayer(merged);
  const path = chainPath(chain, name);
  const partial = `${path}.partial`;
  try {
    await rm(partial, { force: true });
    const paths = merged.map((layer) => chainPath(chain, layer));
    await mergeLayers(paths, partial, bytes, signal);
    await rename(partial, path);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
  const compacted: DiskChain = {
    ...chain,
    layers: [...below, name],
    identities: {
      ...Object.fromEntries(below.map((layer) => [layer, identityOf(chain, layer)])),
      [name]: { id: randomUUID(), through: contentId(chain) },
    },
  };
  await checkChain(compacted);
  return compacted;
}

/**
 * Index of the lowest layer to merge; all above it are merged too. As in log-structured stores, a layer that is much
 * larger than all above it stays, so that compaction costs what was written recently and not the size of the disk, and
 * large layers stay shared with other disks. The number of layers stays bounded.
 * @param sizes in bytes, lowest layer first, at least 2
 */
export function lowestToMerge(sizes: readonly number[]): number {
  let from = sizes.length - 1;
  let above = sizes[from] ?? 0;
  for (;;) {
    const next = sizes[from - 1];
    if (next === undefined) return from;
    const isNeeded = from > LOWEST_KEPT || from === sizes.length - 1;
    if (!isNeeded && next > RATIO * above) return from;
    above += next;
    from -= 1;
  }
}

/** Files in the disk's folder that the chain does not use: merged layers and partial files. */
export async function unusedFiles({ folder, layers, base }: DiskChain): Promise<string[]> {
  const names = await readdir(folder);
  return names.filter((name) => DISK_FILE.test(name) && name !== base.file && !layers.includes(name));
}

/**
 * Removes the files that the chain does not use. A layer with content that is newer than all of the chain is renamed instead: a
 * power failure may have brought back an older manifest, and then it has the guest's newest writes.
 * @returns the new names of such layers
 */
export async function dropUnused(chain: DiskChain): Promise<string[]> {
  const parked: string[] = [];
  for (const name of await unusedFiles(chain)) {
    const path = chainPath(chain, name);
    if (isNewer(chain, name) && !(await isEmpty(path, chain))) {
      const other = `parked-${Date.now()}-${name}`;
      await rename(path, join(chain.folder, other));
      parked.push(other);
    } else await rm(path, { force: true });
  }
  return parked;
}

async function isEmpty(path: string, { bytes }: DiskChain): Promise<boolean> {
  return await stat(path).then(
    ({ size }) => size <= emptyQcow2Bytes(bytes),
    () => true,
  );
}
