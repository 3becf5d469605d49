import type { Vm } from '../vmm/vm.ts';
import type { DiskChain } from './disk-chain.ts';
import { layerOfNode } from './vm-disks.ts';

/** QEMU's name of the device that has the scratch disk (`command-line.ts`). */
const DEVICE = 'scratch';

/** What a VMM has open for its disks, and what stands on what. */
export class BlockGraph {
  readonly #edges: { parent: string; child: string; name: string }[];

  private constructor(edges: { parent: string; child: string; name: string }[]) {
    this.#edges = edges;
  }

  static async of({ qmp }: Vm): Promise<BlockGraph> {
    const { nodes, edges } = (await qmp.execute('x-debug-query-block-graph')) as {
      nodes: { id: number; name: string }[];
      edges: { parent: number; child: number; name: string }[];
    };
    const names = new Map(nodes.map(({ id, name }) => [id, name]));
    const nameOf = (id: number): string => names.get(id) ?? '';
    return new BlockGraph(
      edges.map(({ parent, child, name }) => ({ parent: nameOf(parent), child: nameOf(child), name })),
    );
  }

  /** The node that a node has as `name`. */
  child(parent: string, name: 'file' | 'backing'): string | undefined {
    return this.#edges.find((edge) => edge.parent === parent && edge.name === name)?.child;
  }

  /** Name of the layer that a node is, if it is one. */
  layer(node: string): string | undefined {
    return layerOfNode(this.child(node, 'file'));
  }

  /** A node and all that it stands on, highest first. */
  below(top: string): string[] {
    const found: string[] = [];
    for (let node: string | undefined = top; node !== undefined; node = this.child(node, 'backing')) {
      found.push(node);
    }
    return found;
  }
}

/** Name of the node that the guest's disk is now. (`query-block` tells it, too, after a look into every layer.) */
export async function topNode(vm: Vm): Promise<string> {
  const node = await vm.qmp.execute('qom-get', { path: `/machine/peripheral/${DEVICE}`, property: 'drive' });
  if (typeof node !== 'string' || node === '') throw new Error(`the VMM has no disk ${DEVICE}`);
  return node;
}

/**
 * The disk as a VMM has it open. Its list may name one layer more: one that was made for a capture which failed before it
 * was put on top, so that the VMM goes on writing to the one below.
 * @throws when the VMM writes to none of its layers
 */
export async function openedChain(vm: Vm, chain: DiskChain): Promise<DiskChain> {
  const [graph, top] = await Promise.all([BlockGraph.of(vm), topNode(vm)]);
  const at = chain.layers.indexOf(graph.layer(top) ?? '');
  if (at < 0) throw new Error('the VMM writes to no layer of its disk');
  return { ...chain, layers: chain.layers.slice(0, at + 1) };
}
