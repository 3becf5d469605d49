import { createHash } from 'node:crypto';
import type { DiskChain } from './disk-chain.ts';

/**
 * Names the layers that a disk was made of, lowest first, in few characters: equal for two disks of one line when both
 * are the same layers, whether some of these were made one meanwhile or not.
 */
export function lineageOf({
  base,
  layers,
  lineages = {},
}: Pick<DiskChain, 'base' | 'layers' | 'lineages'>): string {
  const merged = layers.findLastIndex((name) => lineages[name] !== undefined);
  const beginning = lineages[layers[merged] ?? ''] ?? base;
  return layers.slice(merged + 1).reduce(descendant, beginning);
}

/** Whether a disk is its parent and one layer more. */
export function isChildOf(disk: DiskChain, parent: DiskChain): boolean {
  const top = disk.layers.at(-1);
  return top !== undefined && lineageOf(disk) === descendant(lineageOf(parent), top);
}

function descendant(parent: string, layer: string): string {
  return createHash('sha256').update(`${parent}/${layer}`).digest('hex');
}
