import { open } from 'node:fs/promises';
import { chainPath } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { LayerReader } from './layer-reader.ts';
import { CLUSTER_BYTES } from './qcow2.ts';

/** The first block of a file system has its superblock, which says when it was last frozen and how much was written. */
const SUPERBLOCK_BYTES = 4096;

/**
 * Whether nothing was written to the file system in the last layer of a disk. Freezing and thawing alone rewrite its
 * superblock, which counts for nothing.
 */
export async function isTopUnchanged(chain: DiskChain): Promise<boolean> {
  const below = [...chain.layers];
  const top = below.pop();
  if (top === undefined) return false;
  const clusters = await firstClusters(chain, top, 2);
  if (clusters.length === 0) return true;
  if (clusters.length > 1 || clusters[0] !== 0) return false;
  const now = await readFirst(chain, top);
  const before = await readFirstBelow(chain, below);
  return now?.subarray(SUPERBLOCK_BYTES).equals(before.subarray(SUPERBLOCK_BYTES)) === true;
}

/** Which clusters a layer says anything of, lowest first, but no more than `most`. */
async function firstClusters(chain: DiskChain, name: string, most: number): Promise<number[]> {
  await using layer = await LayerReader.open(chainPath(chain, name), chain.bytes);
  const found: number[] = [];
  for await (const index of layer.clusters()) {
    found.push(index);
    if (found.length >= most) break;
  }
  return found;
}

/** The first cluster of a layer; undefined when that is what is below. */
async function readFirst(chain: DiskChain, name: string): Promise<Buffer | undefined> {
  await using layer = await LayerReader.open(chainPath(chain, name), chain.bytes);
  const cluster = (await layer.table(0))?.at(0);
  if (cluster === 'zero') return Buffer.alloc(CLUSTER_BYTES);
  return cluster === undefined ? undefined : await layer.read(cluster, CLUSTER_BYTES);
}

async function readFirstBelow(chain: DiskChain, layers: string[]): Promise<Buffer> {
  for (const name of layers.toReversed()) {
    const cluster = await readFirst(chain, name);
    if (cluster !== undefined) return cluster;
  }
  const buffer = Buffer.alloc(CLUSTER_BYTES);
  const base = await open(chainPath(chain, chain.base.file), 'r');
  try {
    await base.read(buffer, 0, CLUSTER_BYTES, 0);
    return buffer;
  } finally {
    await base.close();
  }
}
