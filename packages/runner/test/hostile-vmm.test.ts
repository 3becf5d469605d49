import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import { checkedJoin } from '../src/disk/checked-join.ts';
import type { DiskChain } from '../src/disk/disk-chain.ts';
import { saveChain } from '../src/disk/disk-chain.ts';
import { contentId } from '../src/disk/lineage.ts';
import { createEmptyQcow2 } from '../src/disk/qcow2.ts';
import { openedChain } from '../src/machine/live-disk.ts';
import { replaceBackingChain } from '../src/machine/replace-backing-chain.ts';
import { BlockGraph, topNode } from '../src/vmm/qemu/block-graph.ts';
import { layerOfNode } from '../src/vmm/qemu/block-nodes.ts';
import { type Answers, FakeError, fakeVmm } from './support/fake-qmp.ts';

const BYTES = 64 * 1024 * 1024;
const CLIMBING = '../../../victim';

let dir: string;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-hostile-vmm-'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

interface Edge {
  parent: string;
  child: string;
  name: string;
}

/** As QEMU tells it: nodes by number. */
function graphOf(edges: readonly Edge[]): object {
  const names = [...new Set(edges.flatMap(({ parent, child }) => [parent, child]))];
  return {
    nodes: names.map((name, id) => ({ id, name, type: 'block-driver' })),
    edges: edges.map(({ parent, child, name }) => ({
      parent: names.indexOf(parent),
      child: names.indexOf(child),
      name,
      perm: [],
      'shared-perm': [],
    })),
  };
}

/** A chain of layers, highest first, each with the node of its file. */
function chainEdges(layers: readonly string[]): Edge[] {
  return layers.flatMap((layer, at) => [
    { parent: `node-${layer}`, child: `file-${layer}`, name: 'file' },
    {
      parent: `node-${layer}`,
      child: at + 1 < layers.length ? `node-${layers[at + 1]}` : 'base',
      name: 'backing',
    },
  ]);
}

function lying(edges: readonly Edge[], top: unknown): Answers {
  return ({ execute }) => {
    if (execute === 'x-debug-query-block-graph') return graphOf(edges);
    if (execute === 'qom-get') return top;
    return {};
  };
}

/** A disk of three layers that lies in a folder and in a jail, and a file beside them that does not belong to it. */
async function disk(): Promise<{ chain: DiskChain; jail: string; home: string }> {
  const home = await mkdtemp(join(dir, 'home-'));
  const folder = join(home, 'vm', 'disk');
  const jail = join(home, 'vm', 'jail');
  await mkdir(folder, { recursive: true });
  await mkdir(jail);
  await writeFile(join(home, 'victim'), 'not yours');
  const layers = ['layer-0.qcow2', 'layer-1.qcow2', 'layer-2.qcow2'];
  for (const name of layers) {
    await createEmptyQcow2(join(folder, name), BYTES);
    await writeFile(join(jail, `scratch-${name}`), '');
  }
  const identities = Object.fromEntries(layers.map((layer) => [layer, { id: randomUUID() }]));
  const base = { file: 'base.ext4', kind: 'overlay', version: 1 } as const;
  const chain: DiskChain = { folder, base, layers, identities, bytes: BYTES };
  await writeFile(join(folder, 'base.ext4'), '');
  await saveChain(chain);
  return { chain, jail, home };
}

/** What `writeCompacted` would have made of all but the top. */
async function flatOf(chain: DiskChain): Promise<DiskChain> {
  const below = { ...chain, layers: chain.layers.slice(0, -1) };
  const identities = { 'flat-1.qcow2': { id: randomUUID(), through: contentId(below) } };
  const flat = { ...chain, layers: ['flat-1.qcow2'], identities };
  await createEmptyQcow2(join(chain.folder, 'flat-1.qcow2'), BYTES);
  return flat;
}

describe('a VMM that lies about its block graph', () => {
  it('names a backing chain that is a circle, and is refused', async () => {
    const circle = [
      { parent: 'a', child: 'b', name: 'backing' },
      { parent: 'b', child: 'a', name: 'backing' },
    ];
    await using vmm = await fakeVmm(lying(circle, 'a'));
    const graph = await BlockGraph.of(vmm.qmp);
    assert.throws(() => graph.below('a'), /backing chain/);
  });

  it('names a chain of a thousand nodes, and is refused', async () => {
    const edges = Array.from({ length: 1000 }, (_, n) => ({
      parent: `n${n}`,
      child: `n${n + 1}`,
      name: 'backing',
    }));
    await using vmm = await fakeVmm(lying(edges, 'n0'));
    const graph = await BlockGraph.of(vmm.qmp);
    assert.throws(() => graph.below('n0'), /backing chain/);
  });

  for (const [what, answer] of Object.entries({
    'a text': 'none',
    nothing: null,
    'nodes without names': { nodes: [{ id: 1 }], edges: [] },
    'edges that are none': { nodes: [], edges: [7] },
    'a hundred thousand edges': {
      nodes: [],
      edges: Array.from({ length: 10_000 }, () => ({ parent: 1, child: 1, name: 'x' })),
    },
    'a name of a kilobyte': { nodes: [{ id: 1, name: 'x'.repeat(1024) }], edges: [] },
  })) {
    it(`answers with ${what}, and is refused`, async () => {
      await using vmm = await fakeVmm(({ execute }) => (execute === 'qom-get' ? 'a' : answer));
      await assert.rejects(BlockGraph.of(vmm.qmp), /answered x-debug-query-block-graph/);
    });
  }

  it('names a top node that does not exist', async () => {
    for (const top of [7, '', null, ['a'], 'x'.repeat(100)]) {
      await using vmm = await fakeVmm(lying([], top));
      await assert.rejects(topNode(vmm.qmp), /no disk/);
    }
  });

  it('gives a layer a name that leads out of the jail, and no file of ours has it', async () => {
    assert.equal(layerOfNode(`file-${CLIMBING}`), undefined);
    assert.equal(layerOfNode('file-layer-0.qcow2/../x'), undefined);
    assert.equal(layerOfNode('real-flat-12.qcow2'), 'flat-12.qcow2');
    const { chain } = await disk();
    await using vmm = await fakeVmm(lying([{ parent: 'a', child: `file-${CLIMBING}`, name: 'file' }], 'a'));
    await assert.rejects(openedChain(vmm, chain), /does not write to any layer of its disk/);
  });

  it('names files between the layers of its disk, and none of them is removed', async () => {
    const { chain, jail, home } = await disk();
    const flat = await flatOf(chain);
    const climbing = `x/../../../../victim`;
    // Between the top and the base, where the layers are that are removed: a node whose file is not of this disk.
    const edges = chainEdges(['layer-2.qcow2', climbing, 'layer-1.qcow2', 'layer-0.qcow2']);
    await using vmm = await fakeVmm(lying(edges, 'node-layer-2.qcow2'));
    const now = await replaceBackingChain(vmm, chain, flat, { jail, persistent: false });
    assert.deepEqual(now.layers, ['flat-1.qcow2', 'layer-2.qcow2']);
    assert.equal(await readFile(join(home, 'victim'), 'utf8'), 'not yours');
    assert.deepEqual((await readdir(jail)).sort(), ['scratch-flat-1.qcow2', 'scratch-layer-2.qcow2']);
  });

  it('refuses its commands, and its disk is unchanged', async () => {
    const { chain, jail } = await disk();
    const flat = await flatOf(chain);
    const graph = graphOf(chainEdges(chain.layers.toReversed()));
    await using vmm = await fakeVmm(({ execute }) => {
      if (execute === 'x-debug-query-block-graph') return graph;
      if (execute === 'qom-get') return 'node-layer-2.qcow2';
      return new FakeError('no');
    });
    await assert.rejects(replaceBackingChain(vmm, chain, flat, { jail, persistent: false }), /no/);
    assert.deepEqual(
      (await readdir(jail)).sort(),
      chain.layers.map((name) => `scratch-${name}`),
    );
  });

  it('never makes the runner touch a file that is not of its disk, for any name', async () => {
    const name = fc.oneof(
      fc.constantFrom(
        'layer-0.qcow2',
        'layer-1.qcow2',
        'layer-2.qcow2',
        CLIMBING,
        '.',
        '..',
        '',
        '/etc/passwd',
      ),
      fc.string({ maxLength: 20 }),
    );
    const node = fc.oneof(
      name.map((it) => `file-${it}`),
      name.map((it) => `real-${it}`),
      name.map((it) => `node-${it}`),
    );
    const edge = fc.record({ parent: node, child: node, name: fc.constantFrom('file', 'backing', 'x') });
    await fc.assert(
      fc.asyncProperty(fc.array(edge, { maxLength: 12 }), node, async (edges, top) => {
        const { chain, jail, home } = await disk();
        const flat = await flatOf(chain);
        await using vmm = await fakeVmm(lying(edges, top));
        await replaceBackingChain(vmm, chain, flat, { jail, persistent: false }).catch(() => undefined);
        assert.equal(await readFile(join(home, 'victim'), 'utf8'), 'not yours');
        assert.ok((await readdir(join(home, 'vm', 'disk'))).includes('base.ext4'));
      }),
      { numRuns: propertyRuns(40) },
    );
  });
});

describe('a VMM that lies about its commands', () => {
  it('sends responses with ids of no request, which are ignored', async () => {
    await using vmm = await fakeVmm(({ id }, socket) => {
      for (const other of [id + 1, -1, 1e300, 'x', null, [id]]) {
        socket.write(`${JSON.stringify({ return: 'wrong', id: other })}\n`);
      }
      socket.write('{"return": "without a number"}\n');
      return 'right';
    });
    assert.equal(await vmm.qmp.execute('query-status'), 'right');
    assert.equal(await vmm.qmp.execute('query-status'), 'right');
  });

  it('answers twice, and the first one counts', async () => {
    await using vmm = await fakeVmm(({ id }, socket) => {
      socket.write(`${JSON.stringify({ return: 'first', id })}\n`);
      return 'second';
    });
    assert.deepEqual(await Promise.all([1, 2, 3].map(() => vmm.qmp.execute('query-status'))), [
      'first',
      'first',
      'first',
    ]);
  });

  it('sends lines of a megabyte without end, and another one is answered meanwhile', async () => {
    let floods = true;
    const line = `${JSON.stringify({ event: 'X', data: { x: 'y'.repeat(1_000_000) } })}\n`;
    await using hostile = await fakeVmm((_, socket) => {
      const more = (): void => {
        if (!floods) return;
        if (socket.write(line)) setImmediate(more);
        else socket.once('drain', more);
      };
      more();
    });
    await using neighbour = await fakeVmm(() => 'here');
    hostile.qmp.execute('query-status', undefined, { deadlineMs: 600_000 }).catch(() => undefined);
    for (let n = 0; n < 50; n++) {
      assert.equal(await neighbour.qmp.execute('query-status', undefined, { deadlineMs: 60_000 }), 'here');
    }
    floods = false;
  });

  it('sends events without end, and only so many of them are read', async () => {
    let sent = 0;
    let floods = true;
    const line = '{"event": "RTC_CHANGE"}\n'.repeat(1000);
    await using hostile = await fakeVmm((_, socket) => {
      const more = (): void => {
        if (!floods) return;
        sent += 1000;
        if (socket.write(line)) setImmediate(more);
        else socket.once('drain', more);
      };
      more();
    });
    let heard = 0;
    hostile.qmp.onEvent(() => {
      heard += 1;
    });
    const started = performance.now();
    hostile.qmp.execute('query-status', undefined, { deadlineMs: 600_000 }).catch(() => undefined);
    await using neighbour = await fakeVmm(() => 'here');
    for (let n = 0; n < 100; n++) {
      assert.equal(await neighbour.qmp.execute('query-status', undefined, { deadlineMs: 60_000 }), 'here');
    }
    const seconds = (performance.now() - started) / 1000;
    floods = false;
    // What its bucket holds and gives, and what one chunk of a socket brings beyond that.
    assert.ok(heard <= 4_000 + 2_000 * seconds + 3_000, `${heard} of ${sent} in ${seconds} s`);
  });
});

describe('names that become paths', () => {
  it('are those of files in the folder itself', () => {
    assert.equal(checkedJoin('/jail', 'scratch-layer-0.qcow2'), '/jail/scratch-layer-0.qcow2');
    for (const name of ['', '.', '..', '../x', 'a/b', '/x', 'a\0b', '.hidden', 'x'.repeat(200)]) {
      assert.throws(() => checkedJoin('/jail', name), /not a file name/);
    }
  });
});
