import { open } from 'node:fs/promises';
import { chainPath } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { CLUSTER_BYTES, listClusters, readCluster } from './qcow2.ts';

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
  const clusters = await listClusters(chainPath(chain, top), 2);
  if (clusters.length === 0) return true;
  if (clusters.length > 1 || clusters[0] !== 0) return false;
  const now = await readCluster(chainPath(chain, top), 0);
  const before = await readFirstCluster(chain, below);
  return now?.subarray(SUPERBLOCK_BYTES).equals(before.subarray(SUPERBLOCK_BYTES)) === true;
}

async function readFirstCluster(chain: DiskChain, layers: string[]): Promise<Buffer> {
  for (const name of layers.toReversed()) {
    const cluster = await readCluster(chainPath(chain, name), 0);
    if (cluster !== undefined) return cluster;
  }
  const buffer = Buffer.alloc(CLUSTER_BYTES);
  if (chain.base === undefined) return buffer;
  const base = await open(chainPath(chain, chain.base), 'r');
  try {
    await base.read(buffer, 0, CLUSTER_BYTES, 0);
    return buffer;
  } finally {
    await base.close();
  }
}
