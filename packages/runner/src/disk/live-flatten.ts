import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { racePoint } from '../race-point.ts';
import type { Vm } from '../vmm/vm.ts';
import { BlockGraph, topNode } from './block-graph.ts';
import { chainPath, saveChain } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { dropUnused } from './flatten.ts';
import { lineageOf } from './lineage.ts';
import { fileNode, inJail, isFileNode, placeInJail } from './vm-disks.ts';

/**
 * Puts a layer in the place of those that it was made of, below the disk of a VM that runs: the guest notices nothing,
 * for it reads the same. Their files go, unless others hold them, too. Nobody may take or change the disk meanwhile.
 * @param flat what `writeFlat` has made of the lowest layers, in the disk's own folder
 * @returns the disk as it is from now on
 * @throws when the VMM refuses or its disk is not what it was made of; the disk is what it was
 */
export async function putBelow(
  vm: Vm,
  chain: DiskChain,
  flat: DiskChain,
  options: { jail: string; persistent: boolean },
): Promise<DiskChain> {
  const { folder, layers, bytes } = chain;
  const { lineage } = flat;
  const [name = ''] = flat.layers;
  const prefix = (length: number): DiskChain => ({ ...chain, layers: layers.slice(0, length) });
  const made = layers.findIndex((_, at) => lineageOf(prefix(at + 1)) === lineage) + 1;
  const above = layers.slice(made);
  const [lowest] = above;
  if (made === 0 || lineage === undefined || lowest === undefined) {
    throw new Error('the disk is not what its flat layer was made of');
  }
  const graph = await BlockGraph.of(vm);
  const isLayer = (node: string, layer: string): boolean => isFileNode(graph.child(node, 'file'), layer);
  const user = graph.below(await topNode(vm)).find((node) => isLayer(node, lowest));
  const [below, ...deeper] = user === undefined ? [] : graph.below(user).slice(1);
  if (user === undefined || below === undefined) throw new Error(`the VMM has no layer above ${name}`);
  // A runner may have ended right after it had done that.
  const done = isLayer(below, name);
  if (!done)
    await replaceBacking(vm, {
      ...options,
      flat,
      user,
      file: graph.child(user, 'file'),
      isTop: above.length === 1,
    });
  racePoint('flatten:replaced');
  const now: DiskChain = { folder, layers: [name, ...above], lineage, bytes };
  await saveChain(now);
  // From the highest: one goes with what stands on it, unless it was added by itself.
  for (const old of done ? [] : [below, ...deeper]) {
    await vm.qmp.execute('blockdev-del', { 'node-name': old }).catch(() => undefined);
  }
  for (const old of [...layers.slice(0, made).map(inJail), 'scratch.base']) {
    await rm(join(options.jail, old), { force: true });
  }
  await dropUnused(now);
  return now;
}

async function replaceBacking(
  vm: Vm,
  options: {
    flat: DiskChain;
    user: string;
    file: string | undefined;
    isTop: boolean;
    jail: string;
    persistent: boolean;
  },
): Promise<void> {
  const { flat, user, file, isTop, jail, persistent } = options;
  const [name = ''] = flat.layers;
  const node = inJail(name);
  const filename = await placeInJail(jail, chainPath(flat, name), node);
  try {
    await vm.qmp.execute('blockdev-add', {
      driver: 'qcow2',
      'node-name': node,
      'read-only': true,
      file: { driver: 'file', 'node-name': fileNode(name), filename, 'read-only': true, locking: 'off' },
      backing: null,
    });
    // All that it was opened with must be said again; only what is below it is another.
    const asItIs = isTop
      ? { discard: 'unmap', ...(persistent ? {} : { cache: { 'no-flush': true } }) }
      : { 'read-only': true };
    await vm.qmp.execute('blockdev-reopen', {
      options: [{ driver: 'qcow2', 'node-name': user, ...asItIs, file, backing: node }],
    });
  } catch (error) {
    await vm.qmp.execute('blockdev-del', { 'node-name': node }).catch(() => undefined);
    await rm(join(jail, node), { force: true });
    throw error;
  }
}
