import { DISKS, type DiskName, type VmDisks } from '../../disk/vm-disks.ts';
import type { BlockDevices, LayerToOpen, OpenLayer, PresentDisks } from '../driver.ts';
import { BlockGraph, topNode } from './block-graph.ts';
import { addedLayer, addedNodeName, diskNodes, layerOptions, topNodeName } from './block-nodes.ts';
import { placeholderNode } from './command-line.ts';
import type { QmpClient } from './qmp.ts';

interface QemuLayer extends OpenLayer {
  node: string;
  /** Its protocol node. */
  file: string | undefined;
  isTop: boolean;
}

export class QemuDisks implements BlockDevices {
  readonly #qmp: Pick<QmpClient, 'execute'>;

  constructor(qmp: Pick<QmpClient, 'execute'>) {
    this.#qmp = qmp;
  }

  /** All commands are sent at once and executed in order, before the guest is resumed. */
  async attach(disks: VmDisks, present: PresentDisks, keepsRoot = false): Promise<void> {
    const nodes = diskNodes(disks);
    const exchanged = DISKS.filter((name) => !(keepsRoot && name === 'root'));
    const commands = exchanged.flatMap((name) => {
      const node = nodes[name]['node-name'];
      const resize = { 'node-name': node, size: name === 'root' ? 0 : disks.bytes[name] };
      return [
        this.#qmp.execute('blockdev-add', nodes[name]),
        this.#qmp.execute('qom-set', { path: `/machine/peripheral/${name}`, property: 'drive', value: node }),
        ...(name === 'root' ? [] : [this.#qmp.execute('block_resize', resize)]),
        this.#qmp.execute('blockdev-del', { 'node-name': presentNode(name, present) }),
      ];
    });
    const failed = (await Promise.allSettled(commands)).find((result) => result.status === 'rejected');
    if (failed) throw new Error(`the disks could not be attached: ${(failed.reason as Error).message}`);
  }

  async openLayers(): Promise<QemuLayer[]> {
    const [graph, top] = await Promise.all([BlockGraph.of(this.#qmp), topNode(this.#qmp)]);
    return graph.below(top).map((node, at) => ({
      layer: graph.layer(node),
      node,
      file: graph.child(node, 'file'),
      isTop: at === 0,
    }));
  }

  async prepareLayer(layer: LayerToOpen): Promise<{ putOnTop: () => Promise<void> }> {
    const overlay = addedNodeName(layer.layer);
    await this.#remove(overlay);
    const node = await topNode(this.#qmp);
    await this.#qmp.execute('blockdev-add', addedLayer(layer, { ...layer, backing: null }));
    return {
      putOnTop: async () => {
        await this.#qmp.execute('blockdev-snapshot', { node, overlay });
      },
    };
  }

  async replaceLayers(layer: LayerToOpen, above: QemuLayer, below: QemuLayer): Promise<void> {
    const backing = addedNodeName(layer.layer);
    try {
      await this.#qmp.execute('blockdev-add', addedLayer(layer, { backing: below.node }));
      // Only the backing node changes.
      const options = layerOptions(above.isTop, layer.persistent);
      await this.#qmp.execute('blockdev-reopen', {
        options: [{ ...options, 'node-name': above.node, file: above.file, backing }],
      });
    } catch (error) {
      await this.#remove(backing);
      throw error;
    }
  }

  /** QEMU removes a node with its parent, unless it was added by `blockdev-add` itself. */
  async closeLayers(layers: readonly QemuLayer[]): Promise<void> {
    for (const { node } of layers) await this.#remove(node);
  }

  async #remove(node: string): Promise<void> {
    await this.#qmp.execute('blockdev-del', { 'node-name': node }).catch(() => undefined);
  }
}

function presentNode(name: DiskName, present: PresentDisks): unknown {
  return present === 'warm-up' ? topNodeName(name, 'warm-up') : placeholderNode(name)['node-name'];
}
