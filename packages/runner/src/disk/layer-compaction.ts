import { randomUUID } from 'node:crypto';
import { readdir, rename, rm, stat } from 'node:fs/promises';
import {
  chainPath,
  checkChain,
  DISK_FILE,
  identityOf,
  LAYERS_KEPT,
  mergedLayer,
  saveChain,
} from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { contentId } from './lineage.ts';
import { mergeLayers } from './qcow2-merge.ts';
import { checkSpace } from './check-space.ts';

/** So many of the lowest layers may stay as they are. */
const LOWEST_KEPT = LAYERS_KEPT / 2;
/** A layer is copied to be merged when it is no more than so many times what lies above it. */
const RATIO = 2;
const BLOCK_BYTES = 512;

/**
 * Compacts the layers of a disk that is not written to meanwhile: each layer costs every VMM that opens it a little. The layers
 * that were merged stay where they are, for VMMs that are opening them.
 * @returns the disk as it is from now on
 * @throws when it cannot be; the disk is what it was
 */
export async function compactChain(chain: DiskChain): Promise<DiskChain> {
  const compacted = await writeCompacted(chain);
  await saveChain(compacted, true);
  return compacted;
}

/** As `compactChain`, and leaves the list of the disk's folder as it is. */
export async function writeCompacted(chain: DiskChain, signal?: AbortSignal): Promise<DiskChain> {
  await checkChain(chain);
  const { layers, bytes } = chain;
  const sizes = await Promise.all(
    layers.map(async (name) => (await stat(chainPath(chain, name))).blocks * BLOCK_BYTES),
  );
  const from = lowestToMerge(sizes);
  const below = layers.slice(0, from);
  const merged = layers.slice(from);
  // If this filled the disk, guests would block on ENOSPC.
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
 * Which layers become one: from this one up to the highest. So that what is written costs what was written lately, and
 * not what the disk has, a layer is left alone when it is much larger than all above it, as log-structured stores do;
 * and untouched layers stay shared with other disks of the chain. But there are never many of them.
 * @param sizes in bytes, lowest layer first, two at least
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

/** What lies beside a disk and is no part of it: what was merged, or was not yet. */
export async function unusedFiles({ folder, layers, base }: DiskChain): Promise<string[]> {
  const names = await readdir(folder);
  return names.filter((name) => DISK_FILE.test(name) && name !== base.file && !layers.includes(name));
}

/** Removes it. */
export async function dropUnused(chain: DiskChain): Promise<void> {
  for (const name of await unusedFiles(chain)) await rm(chainPath(chain, name), { force: true });
}
