import assert from 'node:assert/strict';
import { readdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { LAYERS_KEPT, readChain } from '../src/disk/disk-chain.ts';
import type { DiskChain } from '../src/disk/disk-chain.ts';
import { eventually } from '@releap/testing/eventually';
import { rounds } from '@releap/testing/repetitions';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { vmFacts } from './support/runner-process.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `41111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const EPHEMERAL = id(1);
const PERSISTENT = id(2);
/** Enough for a compaction in the middle of them; nightly for several. */
const CAPTURES = LAYERS_KEPT + rounds(4, LAYERS_KEPT * 2);
const PATIENCE_MS = 240_000;
const STOP_WORK = 'touch /stop; while [ ! -e /stopped ]; do sleep 0.1; done; sync';

let home: string;
let runner: TestRunner;
/** Of the last snapshot of each. */
const newest = new Map<string, string>();
let taken = 100;

before(async () => {
  home = await temporaryFolder('releap-lf-');
  runner = await TestRunner.open(home);
  runner.want(EPHEMERAL, 1, 'running', { spec: { ...SPEC, persistent: false } });
  runner.want(PERSISTENT, 1, 'running');
  for (const vmId of [EPHEMERAL, PERSISTENT]) {
    await runner.reported(1, 'running', { of: vmId });
    // Works on its disk all the time, and says so if it ever reads anything else than it has written.
    await runner.sh(
      vmId,
      `mkdir -p /data /busy; (i=0; while [ ! -e /stop ]; do i=$((i+1)); n=$((i % 7)); echo $i > /dev/shm/rounds
         dd if=/dev/urandom of=/busy/$n bs=64k count=4 2> /dev/null; sha256sum /busy/$n > /busy/$n.sum; sync
         echo 3 > /proc/sys/vm/drop_caches; sha256sum -c /busy/*.sum > /dev/null || echo $i >> /dev/shm/wrong; usleep 1000000; done; touch /stopped) > /dev/null 2>&1 &`,
    );
  }
});
after(async () => await runner.dispose());

const folderOf = (vmId: string): string => join(home, 'vms', vmId, vmId === PERSISTENT ? 'keep' : 'disk');

async function diskOf(vmId: string): Promise<DiskChain> {
  const chain = await readChain(folderOf(vmId));
  assert.ok(chain !== undefined);
  return chain;
}

async function snapshot(vmId: string): Promise<Awaited<ReturnType<TestRunner['snapshot']>>> {
  const snapshotId = id(taken++);
  const parent = newest.get(vmId);
  newest.set(vmId, snapshotId);
  const observation = await runner.snapshot({
    snapshot_id: snapshotId,
    generation: 1,
    desired: 'ready',
    vm_id: vmId,
    kind: 'disk',
    ...(parent === undefined ? {} : { parent_id: parent }),
  });
  assert.equal(observation.status, 'ready', observation.error);
  return observation;
}

/** Waits until its disk is few layers again, of which the VMM has no more open. */
async function settles(vmId: string): Promise<void> {
  for (const end = Date.now() + PATIENCE_MS; ; await sleep(50)) {
    const { layers } = await diskOf(vmId);
    const files = await layerFiles(vmId);
    if (layers.length <= LAYERS_KEPT && files.length === layers.length + 1) return;
    assert.ok(Date.now() < end, `${layers.join(' ')}; open: ${files.join(' ')}`);
  }
}

/** Files of the scratch disk that its VMM has open. */
async function layerFiles(vmId: string): Promise<string[]> {
  const { pid } = await vmFacts(home, vmId);
  const fds = await readdir(`/proc/${pid}/fd`);
  const targets = await Promise.all(fds.map((fd) => readlink(`/proc/${pid}/fd/${fd}`).catch(() => '')));
  return targets.filter((target) => /(layer|flat)-\d+\.qcow2|(scratch|base)\.(base|ext4)/.test(target));
}

const numbers = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, n) => from + n);

async function content(vmId: string, upTo: number): Promise<void> {
  const files = await runner.sh(vmId, 'echo 3 > /proc/sys/vm/drop_caches; cat /data/*');
  assert.deepEqual(
    files
      .trim()
      .split('\n')
      .map(Number)
      .toSorted((a, b) => a - b),
    numbers(0, upTo),
  );
  assert.equal(await runner.sh(vmId, 'cat /dev/shm/wrong 2> /dev/null; true'), '');
}

describe('a sandbox that is captured repeatedly while it runs', () => {
  for (const vmId of [EPHEMERAL, PERSISTENT]) {
    it(`keeps its disk and few layers (${vmId === PERSISTENT ? 'persistent' : 'not persistent'})`, async () => {
      if (vmId === PERSISTENT) await runner.sh(vmId, 'head -c 96000000 /dev/urandom > /large; sync');
      for (const n of numbers(0, CAPTURES)) {
        await runner.sh(vmId, `echo ${n} > /data/${n}`);
        assert.equal((await snapshot(vmId)).no_changes, false);
      }
      await settles(vmId);
      await content(vmId, CAPTURES);
      const { layers, base } = await diskOf(vmId);
      assert.ok(layers.some((name) => /^flat-\d+\.qcow2$/.test(name)));
      // Far more than all later writes: it is not copied, and stays shared by all its descendants.
      if (vmId === PERSISTENT) assert.equal(layers[0], 'layer-0.qcow2');
      // What the VMM has closed is removed after that.
      await eventually('no other files', async () => {
        const others = (await readdir(folderOf(vmId))).filter((name) => /qcow2|ext4/.test(name));
        assert.deepEqual(others.toSorted(), [base.file, ...layers].toSorted());
        return true;
      });
    });
  }

  it('is told when nothing was written since its last snapshot, in a chain of any length', async () => {
    await runner.sh(EPHEMERAL, STOP_WORK);
    await snapshot(EPHEMERAL);
    const again = await snapshot(EPHEMERAL);
    assert.equal(again.no_changes, true);
    await runner.sh(EPHEMERAL, 'echo more > /data/more');
    assert.equal((await snapshot(EPHEMERAL)).no_changes, false);
    await runner.sh(EPHEMERAL, 'rm /data/more');
  });

  it('a sandbox from its last snapshot has all of its data', async () => {
    await snapshot(EPHEMERAL);
    const child = id(20);
    const snapshotId = newest.get(EPHEMERAL) ?? '';
    runner.want(child, 1, 'running', {
      start_from: 'disk',
      spec: {
        ...SPEC,
        persistent: false,
        origin: { type: 'snapshot', snapshot_id: snapshotId, kind: 'disk' },
      },
    });
    await runner.reported(1, 'running', { of: child });
    await content(child, CAPTURES);
    assert.match(await runner.sh(child, 'sha256sum -c /busy/*.sum'), /OK/);
  });

  it('is forked, paused, resumed, stopped and started with the disk that it has then', async () => {
    const child = id(21);
    runner.want(child, 1, 'running', { spec: { ...SPEC, origin: { type: 'fork', vm_id: PERSISTENT } } });
    await runner.reported(1, 'running', { of: child });
    await content(child, CAPTURES);
    runner.want(PERSISTENT, 2, 'paused');
    await runner.reported(2, 'paused', { of: PERSISTENT });
    runner.want(PERSISTENT, 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: PERSISTENT });
    await content(PERSISTENT, CAPTURES);
    await runner.sh(PERSISTENT, STOP_WORK);
    runner.want(PERSISTENT, 4, 'stopped');
    await runner.reported(4, 'stopped', { of: PERSISTENT });
    runner.want(PERSISTENT, 5, 'running', { start_from: 'disk' });
    await runner.reported(5, 'running', { of: PERSISTENT });
    await content(PERSISTENT, CAPTURES);
    assert.match(await runner.sh(PERSISTENT, 'sha256sum -c /busy/*.sum'), /OK/);
  });
});
