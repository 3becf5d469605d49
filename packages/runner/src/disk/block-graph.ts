import { Type } from 'typebox';
import { Compile } from 'typebox/compile';
import type { Vm } from '../vmm/vm.ts';
import { LAYERS_MAX } from './disk-chain.ts';
import type { DiskChain } from './disk-chain.ts';
import { layerOfNode } from './vm-disks.ts';

/** QEMU's name of the device that has the scratch disk (`command-line.ts`). */
const DEVICE = 'scratch';

/** A chain has a node for each layer, one for its base and one for the device. */
const CHAIN_MAX = LAYERS_MAX + 3;
/** Far more than three disks of the longest chains have, with the nodes of their files. */
const GRAPH_MAX = 4096;
/** What QEMU allows for the name of a node, and one of its own making. */
const NAME_MAX = 64;

const Graph = Compile(
  Type.Object({
    nodes: Type.Array(Type.Object({ id: Type.Integer(), name: Type.String({ maxLength: NAME_MAX }) }), {
      maxItems: GRAPH_MAX,
    }),
    edges: Type.Array(
      Type.Object({
        parent: Type.Integer(),
        child: Type.Integer(),
        name: Type.String({ maxLength: NAME_MAX }),
      }),
      { maxItems: 2 * GRAPH_MAX },
    ),
  }),
);

/**
 * What a VMM has open for its disks, with the backing files. All of it is reported by the VMM: it is bounded, and no name of
 * it may become a path.
 */
export class BlockGraph {
  readonly #edges: { parent: string; child: string; name: string }[];

  private constructor(edges: { parent: string; child: string; name: string }[]) {
    this.#edges = edges;
  }

  /** @throws when the answer is no graph that a disk of ours can have */
  static async of({ qmp }: Pick<Vm, 'qmp'>): Promise<BlockGraph> {
    const answer = await qmp.execute('x-debug-query-block-graph');
    if (!Graph.Check(answer)) throw new Error('the VMM answers with something that is no block graph');
    const { nodes, edges } = answer;
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

  /** A node and its backing chain, highest first. @throws when that is a circle, or longer than a disk of ours */
  below(top: string): string[] {
    const found = new Set<string>();
    for (let node: string | undefined = top; node !== undefined; node = this.child(node, 'backing')) {
      if (found.has(node) || found.size >= CHAIN_MAX) {
        throw new Error('the VMM names a backing chain that no disk has');
      }
      found.add(node);
    }
    return [...found];
  }
}

/** Name of the node that the guest's disk is now. (`query-block` tells it, too, after a look into every layer.) */
export async function topNode(vm: Pick<Vm, 'qmp'>): Promise<string> {
  const node = await vm.qmp.execute('qom-get', { path: `/machine/peripheral/${DEVICE}`, property: 'drive' });
  if (typeof node !== 'string' || node === '' || node.length > NAME_MAX)
    throw new Error(`the VMM has no disk ${DEVICE}`);
  return node;
}

/**
 * The disk as a VMM has it open. Its list may name one layer more: one that was made for a capture which failed before it
 * was put on top, so that the VMM continues to write to the one below.
 * @throws when the VMM writes to none of its layers
 */
export async function openedChain(vm: Pick<Vm, 'qmp'>, chain: DiskChain): Promise<DiskChain> {
  const [graph, top] = await Promise.all([BlockGraph.of(vm), topNode(vm)]);
  const at = chain.layers.indexOf(graph.layer(top) ?? '');
  if (at < 0) throw new Error('the VMM writes to no layer of its disk');
  return { ...chain, layers: chain.layers.slice(0, at + 1) };
}
