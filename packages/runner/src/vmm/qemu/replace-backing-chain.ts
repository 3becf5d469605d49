import { readdir, rm } from 'node:fs/promises';
import { failpoint } from '../../failpoint.ts';
import type { Vm } from './vm.ts';
import { BlockGraph, topNode } from './block-graph.ts';
import { checkedJoin } from '../../disk/checked-join.ts';
import { chainPath, identityOf, saveChain } from '../../disk/disk-chain.ts';
import type { DiskChain } from '../../disk/disk-chain.ts';
import { dropUnused } from '../../disk/layer-compaction.ts';
import { contentId } from '../../disk/lineage.ts';
import { fileNode, inJail, isLayerInJail, L2_CACHE_BYTES, placeInJail } from '../../disk/vm-disks.ts';

/**
 * Replaces the layers below the top of a running VM's disk with their merged layer. The content is the same, so the guest
 * notices nothing. Removes the merged layers from the folder. The caller excludes captures and other changes of the disk.
 * @param compacted result of `writeCompacted` for the disk without its top, in the disk's folder
 * @returns the new chain
 * @throws when the VMM refuses, or its disk does not have the layers that were merged; the disk is unchanged
 */
export async function replaceBackingChain(
  vm: Pick<Vm, 'qmp'>,
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
  const graph = await BlockGraph.of(vm);
  const nodes = graph.below(await topNode(vm));
  const nodeOf = (layer: string): number => nodes.findIndex((node) => graph.layer(node) === layer);
  const user = nodeOf(lowest);
  // The last node is the empty disk.
  const backing = from === 0 ? nodes.length - 1 : nodeOf(layers[from - 1] ?? '');
  if (user < 0 || backing <= user) throw new Error('the VMM does not have the layers of its disk open');
  const replaced = nodes.slice(user + 1, backing);
  // An earlier runner may have ended right after this step.
  const done = replaced.length === 1 && nodeOf(name) === user + 1;
  if (!done) {
    await replaceBacking(vm, {
      ...options,
      compacted,
      user: nodes[user] ?? '',
      file: graph.child(nodes[user] ?? '', 'file'),
      isTop: above.length === 1,
      backing: nodes[backing] ?? '',
    });
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
  // Highest first: QEMU removes a node with its parent, unless it was added by `blockdev-add` itself.
  for (const old of done ? [] : replaced) {
    await vm.qmp.execute('blockdev-del', { 'node-name': old }).catch(() => undefined);
  }
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

async function replaceBacking(
  vm: Pick<Vm, 'qmp'>,
  options: {
    compacted: DiskChain;
    user: string;
    file: string | undefined;
    isTop: boolean;
    /** Node of the layer's backing file. */
    backing: string;
    jail: string;
    persistent: boolean;
  },
): Promise<void> {
  const { compacted, user, file, isTop, backing, jail, persistent } = options;
  const name = compacted.layers.at(-1) ?? '';
  const node = inJail(name);
  const filename = await placeInJail(jail, chainPath(compacted, name), node);
  try {
    await vm.qmp.execute('blockdev-add', {
      driver: 'qcow2',
      'node-name': node,
      'l2-cache-size': L2_CACHE_BYTES.below,
      'read-only': true,
      file: { driver: 'file', 'node-name': fileNode(name), filename, 'read-only': true, locking: 'off' },
      backing,
    });
    // `blockdev-reopen` takes all options again; only the backing node changes.
    const asItIs = isTop
      ? {
          'l2-cache-size': L2_CACHE_BYTES.top,
          discard: 'unmap',
          ...(persistent ? {} : { cache: { 'no-flush': true } }),
        }
      : { 'l2-cache-size': L2_CACHE_BYTES.below, 'read-only': true };
    await vm.qmp.execute('blockdev-reopen', {
      options: [{ driver: 'qcow2', 'node-name': user, ...asItIs, file, backing: node }],
    });
  } catch (error) {
    await vm.qmp.execute('blockdev-del', { 'node-name': node }).catch(() => undefined);
    await rm(checkedJoin(jail, node), { force: true });
    throw error;
  }
}
