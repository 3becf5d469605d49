import { chown } from 'node:fs/promises';
import type { Vm } from './vm.ts';
import { topNode } from './block-graph.ts';
import { chainPath, LAYERS_MAX, replaceLayer, saveChain, withNewLayer } from '../../disk/disk-chain.ts';
import type { DiskChain } from '../../disk/disk-chain.ts';
import { fileNode, inJail, L2_CACHE_BYTES, placeInJail } from '../../disk/vm-disks.ts';

/**
 * A new, empty layer for a running VM. Once it is on top (`blockdev-snapshot`), the layers below are immutable and can be
 * shared.
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
   * Creates the layer and adds it to the VMM as a block node. The manifest names it from now on: a layer that never gets on
   * top is empty, but one on top that the manifest does not name would be lost.
   * @param chain the disk as the VMM has it open (`openedChain`)
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
    // The layer of an earlier capture that failed before it was on top.
    await vm.qmp.execute('blockdev-del', { 'node-name': node }).catch(() => undefined);
    await replaceLayer(chain, name, persistent);
    await chown(path, uid, uid);
    const filename = await placeInJail(jail, path, node);
    // Before the VMM gets it: the manifest must name the top layer, whenever this process ends.
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

  /** Puts the layer on top; earlier writes of the guest are below. @returns the chain that is immutable from now on */
  async putOnTop(): Promise<DiskChain> {
    await this.#vm.qmp.execute('blockdev-snapshot', { node: this.#from, overlay: this.#node });
    return this.#below;
  }
}
