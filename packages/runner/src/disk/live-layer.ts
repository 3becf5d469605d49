import { chown } from 'node:fs/promises';
import type { Vm } from '../vmm/vm.ts';
import { topNode } from './block-graph.ts';
import { chainPath, LAYERS_MAX, replaceLayer, saveChain, withNewLayer } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { fileNode, inJail, L2_CACHE_BYTES, placeInJail } from './vm-disks.ts';

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
   * @param chain the disk as the VMM has it (`openedChain`)
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
    const grown = withNewLayer(chain);
    const name = grown.layers.at(-1) as string;
    const path = chainPath(chain, name);
    const node = inJail(name);
    // One of an earlier capture that failed before it was on top.
    await vm.qmp.execute('blockdev-del', { 'node-name': node }).catch(() => undefined);
    await replaceLayer(chain, name, persistent);
    await chown(path, uid, uid);
    const filename = await placeInJail(jail, path, node);
    // Before the VMM has it: what it has on top must be in the list, whenever we end.
    await saveChain(grown, persistent);
    const from = await topNode(vm);
    await vm.qmp.execute('blockdev-add', {
      driver: 'qcow2',
      'node-name': node,
      'l2-cache-size': L2_CACHE_BYTES.top,
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
