import { readdir, rm } from 'node:fs/promises';
import { failpoint } from '../failpoint.ts';
import { checkedJoin } from '../disk/checked-join.ts';
import { chainPath, identityOf, saveChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import { dropUnused } from '../disk/layer-compaction.ts';
import { contentId } from '../disk/lineage.ts';
import { inJail, isLayerInJail, placeInJail } from '../disk/vm-disks.ts';
import type { OpenLayer, Vm } from '../vmm/driver.ts';

/**
 * Replaces the layers below the top of a running VM's disk with their merged layer. The content is the same, so the guest
 * notices nothing. Removes the merged layers from the folder. The caller excludes captures and other changes of the disk.
 * @param compacted result of `writeCompacted` for the disk without its top, in the disk's folder
 * @returns the new chain
 * @throws when the VMM refuses, or its disk does not have the layers that were merged; the disk is unchanged
 */
export async function replaceBackingChain(
  { disks }: Pick<Vm, 'disks'>,
  chain: DiskChain,
  compacted: DiskChain,
  options: { jail: string; persistent: boolean },
): Promise<DiskChain> {
  const { layers } = chain;
  const name = compacted.layers.at(-1) ?? '';
  const from = compacted.layers.length - 1;
  const prefix = (length: number): DiskChain => ({ ...chain, layers: layers.slice(0, length) });
  const content = contentId(compacted);
  const to = layers.findIndex((_, at) => contentId(prefix(at + 1)) === content) + 1;
  const merged = layers.slice(from, to);
  const above = layers.slice(to);
  const [lowest] = above;
  const isSameBelow = compacted.layers.slice(0, from).every((layer, at) => layer === layers[at]);
  if (merged.length === 0 || !isSameBelow || lowest === undefined) {
    throw new Error('the disk does not have the layers that were merged');
  }
  const open = await disks.openLayers();
  const positionOf = (layer: string): number => open.findIndex((one) => one.layer === layer);
  const user = positionOf(lowest);
  // The last one is the empty disk.
  const backing = from === 0 ? open.length - 1 : positionOf(layers[from - 1] ?? '');
  if (user < 0 || backing <= user) throw new Error('the VMM does not have the layers of its disk open');
  const replaced = open.slice(user + 1, backing);
  // An earlier runner may have ended right after this step.
  const done = replaced.length === 1 && positionOf(name) === user + 1;
  if (!done) {
    const path = await placeInJail(options.jail, chainPath(compacted, name), inJail(name));
    try {
      const layer = { layer: name, path, persistent: options.persistent };
      await disks.replaceLayers(layer, open[user] as OpenLayer, open[backing] as OpenLayer);
    } catch (error) {
      await rm(checkedJoin(options.jail, inJail(name)), { force: true });
      throw error;
    }
  }
  failpoint('compaction:replaced');
  const now: DiskChain = {
    ...compacted,
    layers: [...compacted.layers, ...above],
    identities: {
      ...compacted.identities,
      ...Object.fromEntries(above.map((layer) => [layer, identityOf(chain, layer)])),
    },
  };
  await saveChain(now, options.persistent);
  if (!done) await disks.closeLayers(replaced);
  await dropUnusedInJail(options.jail, now);
  await dropUnused(now);
  return now;
}

/**
 * Removes the layers in a jail that the chain no longer has. It reads the names from the folder, which only root can change:
 * node names that the VMM reports are not trusted.
 */
async function dropUnusedInJail(jail: string, { layers }: DiskChain): Promise<void> {
  const used = new Set(layers.map(inJail));
  for (const name of await readdir(jail)) {
    if (isLayerInJail(name) && !used.has(name)) await rm(checkedJoin(jail, name), { force: true });
  }
}
