import { chown } from 'node:fs/promises';
import type { Vm } from '../vmm/vm.ts';
import { chainPath, LAYERS_MAX, nextLayer, replaceLayer, saveChain } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { fileNode, inJail, placeInJail } from './vm-disks.ts';

/** QEMU's name of the device that has the scratch disk (`command-line.ts`). */
const DEVICE = 'scratch';

/**
 * A new, empty layer for a VM that runs: from the moment it is put on top, what is below never changes again and can
 * be shared.
 */
export class LiveLayer {
  readonly #vm: Vm;
  readonly #below: DiskChain;
  readonly #from: string;
  readonly #node: string;

  private constructor(vm: Vm, below: DiskChain, from: string, node: string) {
    this.#vm = vm;
    this.#below = below;
    this.#from = from;
    this.#node = node;
  }

  /**
   * Makes it and gives it to the VMM. The disk's list has it from now on: a layer that is never put on top is empty,
   * and one that is and is not in the list would be lost.
   */
  static async prepare(
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
    const name = nextLayer(chain);
    const path = chainPath(chain, name);
    await replaceLayer(chain, name);
    await chown(path, uid, uid);
    const node = inJail(name);
    const filename = await placeInJail(jail, path, node);
    // Before the VMM has it: where that fails, the next one has another name, which the VMM does not know yet.
    await saveChain({ ...chain, layers: [...chain.layers, name] });
    const from = await topNode(vm);
    await vm.qmp.execute('blockdev-add', {
      driver: 'qcow2',
      'node-name': node,
      discard: 'unmap',
      ...(persistent ? {} : { cache: { 'no-flush': true } }),
      file: { driver: 'file', 'node-name': fileNode(name), filename, discard: 'unmap' },
      backing: null,
    });
    return new LiveLayer(vm, chain, from, node);
  }

  /** Puts it on top; what the guest has sent to the disk by now is below. @returns what never changes again */
  async putOnTop(): Promise<DiskChain> {
    await this.#vm.qmp.execute('blockdev-snapshot', { node: this.#from, overlay: this.#node });
    return this.#below;
  }
}

/** Name of the node that the guest's disk is now. (`query-block` tells it, too, after a look into every layer.) */
export async function topNode(vm: Vm): Promise<string> {
  const node = await vm.qmp.execute('qom-get', { path: `/machine/peripheral/${DEVICE}`, property: 'drive' });
  if (typeof node !== 'string' || node === '') throw new Error(`the VMM has no disk ${DEVICE}`);
  return node;
}
