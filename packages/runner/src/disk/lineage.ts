import type { DiskChain } from './disk-chain.ts';

/**
 * Identifies the content of a disk: the id of its highest layer, because a layer never gets another backing chain. A merged
 * layer has the id of the highest layer that was merged into it.
 */
export function contentId({
  base,
  layers,
  identities,
}: Pick<DiskChain, 'base' | 'layers' | 'identities'>): string {
  const top = identities[layers.at(-1) ?? ''];
  return top === undefined ? `${base.kind}-${base.version}` : (top.through ?? top.id);
}

/** Whether a disk is its parent with one more layer. */
export function isChildOf(disk: DiskChain, parent: DiskChain): boolean {
  if (disk.layers.length === 0) return false;
  return contentId({ ...disk, layers: disk.layers.slice(0, -1) }) === contentId(parent);
}
