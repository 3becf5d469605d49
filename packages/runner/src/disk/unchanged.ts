import { open } from 'node:fs/promises';
import { chainPath } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { LayerReader } from './layer-reader.ts';
import { CLUSTER_BYTES } from './qcow2.ts';

/** The first block has the superblock, with the time of the last freeze and the number of bytes written. */
const SUPERBLOCK_BYTES = 4096;

/**
 * Whether the last layer of a disk has no changes of the file system. Freeze and thaw rewrite the superblock; that does
 * not count.
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

/** Indexes of the clusters that a layer has, lowest first, at most `most`. */
async function firstClusters(chain: DiskChain, name: string, most: number): Promise<number[]> {
  await using layer = await LayerReader.open(chainPath(chain, name), chain.bytes);
  const found: number[] = [];
  for await (const index of layer.clusters()) {
    found.push(index);
    if (found.length >= most) break;
  }
  return found;
}

/** The first cluster of a layer; undefined when it is unallocated. */
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
