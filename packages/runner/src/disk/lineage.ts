import type { DiskChain } from './disk-chain.ts';

/**
 * Names the content of a disk: the id of its highest layer, which was made on top of one content and never has another one
 * below it. A layer that was merged has the content of the highest that it was made of.
 */
export function contentId({
  base,
  layers,
  identities,
}: Pick<DiskChain, 'base' | 'layers' | 'identities'>): string {
  const top = identities[layers.at(-1) ?? ''];
  return top === undefined ? `${base.kind}-${base.version}` : (top.through ?? top.id);
}

/** Whether a disk is its parent and one layer more. */
export function isChildOf(disk: DiskChain, parent: DiskChain): boolean {
  if (disk.layers.length === 0) return false;
  return contentId({ ...disk, layers: disk.layers.slice(0, -1) }) === contentId(parent);
}
