/** Changes of the scratch disk of a running VM. The manifest always names the top layer, whenever this process ends. */
import { chown } from 'node:fs/promises';
import { chainPath, LAYERS_MAX, replaceLayer, saveChain, withNewLayer } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import { inJail, placeInJail } from '../disk/vm-disks.ts';
import type { Vm } from '../vmm/driver.ts';

/**
 * The chain as a VMM has it open. The manifest may name one more layer: a capture created it and failed before it was on top,
 * so the VMM continues to write to the layer below.
 * @throws when the VMM writes to none of the chain's layers
 */
export async function openedChain({ disks }: Pick<Vm, 'disks'>, chain: DiskChain): Promise<DiskChain> {
  const [top] = await disks.openLayers();
  const at = chain.layers.indexOf(top?.layer ?? '');
  if (at < 0) throw new Error('the VMM does not write to any layer of its disk');
  return { ...chain, layers: chain.layers.slice(0, at + 1) };
}

/** A new, empty layer for a running VM. */
export interface LiveLayer {
  /** Puts the layer on top; earlier writes of the guest are below. @returns the chain that is immutable from now on */
  putOnTop(): Promise<DiskChain>;
}

/**
 * Creates the layer and opens it in the VMM. The manifest names it from now on: a layer that never gets on top is empty, but one
 * on top that the manifest does not name would be lost.
 * @param chain the disk as the VMM has it open (`openedChain`)
 */
export async function prepareLayer(
  vm: Vm,
  chain: DiskChain,
  options: { jail: string; uid: number; persistent: boolean },
): Promise<LiveLayer> {
  const { jail, uid, persistent } = options;
  if (chain.layers.length >= LAYERS_MAX) {
    throw new Error(
      `the sandbox is captured faster than its disk of ${chain.layers.length} layers can be tidied: try again later`,
    );
  }
  const grown = withNewLayer(chain);
  const layer = grown.layers.at(-1) as string;
  const file = chainPath(chain, layer);
  await replaceLayer(chain, layer, persistent);
  await chown(file, uid, uid);
  const path = await placeInJail(jail, file, inJail(layer));
  // Before the VMM gets it.
  await saveChain(grown, persistent);
  const prepared = await vm.disks.prepareLayer({ layer, path, persistent });
  return {
    putOnTop: async () => {
      await prepared.putOnTop();
      return chain;
    },
  };
}
