import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { DesiredState, Origin, SandboxSpec } from '@releap/contract';
import { LAYERS_KEPT, readChain } from '../src/disk/disk-chain.ts';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { sampleOf } from '@releap/testing/repetitions';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { copiersOf, RunnerProcess, vmFacts } from './support/runner-process.ts';
import type { VmFacts } from './support/runner-process.ts';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import type { SnapshotAssignment } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `51111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const SOURCE = id(1);
const EPHEMERAL = id(2);
/** A guest is paused for milliseconds; this is for a machine that does ten other things. */
const CONTINUES_MS = 120_000;
const COMES_TO_IT_MS = 240_000;
const SMALL: SandboxSpec = { ...SPEC, scratch_mib: 64, ports: [] };
const FILL = `mkdir -p /data; dd if=/dev/urandom of=/data/file bs=1M count=1 2> /dev/null
  dd if=/dev/urandom of=/dev/shm/m bs=1M count=2 2> /dev/null
  (cd /; sha256sum data/file dev/shm/m > /dev/shm/sums; cp /dev/shm/sums /sums)
  ${COUNTER}`;

const CHECK = 'cd /; sha256sum -c /dev/shm/sums';

let home: string;
/** One at a time. */
let runner: RunnerProcess;
/** Number of the last snapshot of a long chain. */
let captured = 40;
/** The sources' VMMs before any capture. */
const first = new Map<string, VmFacts>();
before(async () => {
  home = await temporaryFolder('releap-cx-');
  runner = await RunnerProcess.open(home);
  for (const vmId of [SOURCE, EPHEMERAL]) {
    await runner.want(vmId, 1, 'running', { spec: { ...SMALL, persistent: vmId === SOURCE } });
    await runner.reported(vmId, 1, 'running');
    await runner.sh(vmId, FILL);
    first.set(vmId, await vmFacts(home, vmId));
  }
});
after(async () => {
  await runner?.close().catch(() => undefined);
  await (await TestRunner.open(home)).dispose();
});

/** Kills the runner at each point in turn: after each, the next one finds the source unchanged, and gets the same assignment. */
async function walk(
  points: string[],
  source: string,
  act: () => Promise<unknown>,
  afterwards: (point: string) => Promise<void> = async () => undefined,
): Promise<void> {
  for (const point of points) {
    await runner.arm(point);
    // Its response is lost with it.
    void act().catch(() => undefined);
    const how = await Promise.race([runner.died(), sleep(COMES_TO_IT_MS, 'nothing', { ref: false })]);
    assert.equal(how, 'SIGKILL', `the runner never came to ${point}`);
    runner = await RunnerProcess.open(home);
    await continues(source, point);
    await afterwards(point);
  }
}

/** It is the same VMM with the same process and all of its data, no guest is paused, and nothing is left of a capture. */
async function continues(vmId: string, point: string): Promise<void> {
  const before = first.get(vmId);
  assert.equal((await runner.observed(vmId))?.status, 'running', point);
  assert.match(await runner.sh(vmId, `${COUNTS}; ${CHECK}`), /file: OK\n.*m: OK/, point);
  // Processes of a killed runner end with it, after some milliseconds.
  await eventually(`${point}: nothing is left of a capture`, async () => {
    assert.deepEqual(await vmFacts(home, vmId), before);
    assert.deepEqual(await copiersOf(before?.pid ?? 0), []);
    return true;
  });
}

async function isWhole(vmId: string, hasMemory = true): Promise<void> {
  if (!hasMemory)
    return assert.match(await runner.sh(vmId, 'cd /; sha256sum -c /sums 2> /dev/null; true'), /file: OK/);
  assert.match(await runner.sh(vmId, `${COUNTS}; ${CHECK}`), /file: OK\n.*m: OK/);
  await eventually('no process but the VMM', async () => {
    assert.deepEqual((await vmFacts(home, vmId)).others, []);
    return true;
  });
}

async function begin(vmId: string, desired: DesiredState, origin: Origin, more: Partial<SandboxSpec> = {}) {
  const fromDisk = origin.type === 'snapshot' && origin.kind === 'disk';
  await runner.want(vmId, 1, desired, {
    ...(desired === 'running' ? { start_from: fromDisk ? 'disk' : 'memory' } : {}),
    spec: { ...SMALL, name: 'child', ...more, origin },
  });
}

async function removed(vmId: string): Promise<void> {
  await runner.want(vmId, 9, 'deleted');
  await runner.reported(vmId, 9, 'deleted');
  assert.equal(await runner.hasNetwork(vmId), false);
}

async function holdsOnly(vms: string[], snapshots: number[]): Promise<void> {
  assert.deepEqual((await readdir(join(home, 'vms'))).sort(), vms.toSorted());
  assert.deepEqual(
    (await readdir(join(home, 'snapshots')).catch(() => [] as string[])).sort(),
    snapshots.map(id).sort(),
  );
}

const at = (operation: string, ...points: string[]): string[] =>
  points.map((point) => `${operation}:${point}`);

describe('a runner that is killed repeatedly in the middle of', () => {
  it('a fork: the source continues each time, and the child is a fork in the end', async () => {
    const child = id(10);
    const act = (): Promise<void> => begin(child, 'running', { type: 'fork', vm_id: SOURCE });
    const points = at('fork', 'recorded', 'prepared', 'frozen', 'stopped', 'taken', 'copied', 'slot');
    await walk(sampleOf(points, 3), SOURCE, act, async (point) => {
      assert.deepEqual((await readdir(join(home, 'vms'))).sort(), [SOURCE, EPHEMERAL], point);
      assert.equal(await runner.hasNetwork(child), false, point);
    });
    // From here on there is a child that can be re-attached.
    for (const [index, point] of sampleOf(at('fork', 'loaded', 'thawed', 'running'), 2).entries()) {
      const another = id(30 + index);
      const begun = (): Promise<void> => begin(another, 'running', { type: 'fork', vm_id: SOURCE });
      await walk([point], SOURCE, begun);
      await begun();
      assert.match((await runner.reported(another, 1, 'running')).manifest_name ?? '', /^sha256:/);
      await isWhole(another);
      assert.equal(await runner.sh(another, 'hostname'), 'child\n');
      await removed(another);
    }
    await continues(SOURCE, 'the end');
    await holdsOnly([SOURCE, EPHEMERAL], []);
  });

  it('a full snapshot: the source continues each time, and the snapshot is whole in the end', async () => {
    const wanted = snapshotOf(20, SOURCE, 'full');
    const points = at('snapshot', 'prepared', 'frozen', 'stopped', 'taken', 'copied');
    await walk(
      sampleOf(points, 2),
      SOURCE,
      () => runner.snapshot(wanted),
      async () => {
        assert.ok(!(await readdir(join(home, 'snapshots'))).includes(id(20)), 'what is half is not there');
      },
    );
    await walk(['snapshot:completed'], SOURCE, () => runner.snapshot(wanted));
    assert.equal((await runner.snapshot(wanted)).status, 'ready');
    await holdsOnly([SOURCE, EPHEMERAL], [20]);
  });

  it('a resume from that snapshot: it resumes in the end, once', async () => {
    const child = id(11);
    const act = (): Promise<void> =>
      begin(child, 'running', { type: 'snapshot', snapshot_id: id(20), kind: 'full' });
    const points = ['restore:recorded', 'restore:copied', 'resume:slot', 'resume:loaded'];
    await walk(sampleOf(points, 2), SOURCE, act);
    await act();
    assert.match((await runner.reported(child, 1, 'running')).manifest_name ?? '', /^sha256:/);
    await isWhole(child);
    await removed(child);
    await holdsOnly([SOURCE, EPHEMERAL], [20]);
  });

  it('a snapshot of the disk: the same, and its file system never stays frozen', async () => {
    const wanted = snapshotOf(21, EPHEMERAL, 'disk');
    const points = at('snapshot', 'prepared', 'frozen', 'taken', 'copied', 'completed');
    await walk(
      sampleOf(points, 3),
      EPHEMERAL,
      () => runner.snapshot(wanted),
      async (point) => {
        assert.equal(
          await runner.sh(EPHEMERAL, `echo ${point} > /data/written; sync; cat /data/written`),
          `${point}\n`,
        );
      },
    );
    assert.equal((await runner.snapshot(wanted)).status, 'ready');
    await holdsOnly([SOURCE, EPHEMERAL], [20, 21]);
  });

  for (const persistent of [true, false]) {
    it(`a sandbox from that disk, ${persistent ? 'persistent' : 'not persistent'}: it runs in the end`, async () => {
      const child = id(persistent ? 12 : 13);
      const act = (): Promise<void> =>
        begin(child, 'running', { type: 'snapshot', snapshot_id: id(21), kind: 'disk' }, { persistent });
      const points = persistent
        ? ['restore:recorded', 'restore:copied', 'start:restored']
        : ['create:restored'];
      await walk(sampleOf(points, 2), SOURCE, act);
      await act();
      assert.match((await runner.reported(child, 1, 'running')).manifest_name ?? '', /^sha256:/);
      await isWhole(child, false);
      await removed(child);
      await holdsOnly([SOURCE, EPHEMERAL], [20, 21]);
    });
  }

  it('a fork of a paused sandbox: both are paused in the end, and resume with the same memory', async () => {
    const child = id(14);
    await runner.want(SOURCE, 2, 'paused');
    await runner.reported(SOURCE, 2, 'paused');
    const act = (): Promise<void> => begin(child, 'paused', { type: 'fork', vm_id: SOURCE });
    for (const point of sampleOf(at('fork', 'recorded', 'prepared', 'copied'), 2)) {
      await runner.arm(point);
      void act().catch(() => undefined);
      assert.equal(await runner.died(), 'SIGKILL');
      runner = await RunnerProcess.open(home);
      assert.equal((await runner.observed(SOURCE))?.status, 'paused');
      assert.deepEqual((await readdir(join(home, 'vms'))).sort(), [SOURCE, EPHEMERAL].sort());
    }
    await act();
    await runner.reported(child, 1, 'paused');
    for (const [vmId, generation] of [
      [SOURCE, 3],
      [child, 2],
    ] as const) {
      await runner.want(vmId, generation, 'running', {
        start_from: 'memory',
        spec: { ...SMALL, name: 'on' },
      });
      await runner.reported(vmId, generation, 'running');
      await isWhole(vmId);
    }
    await removed(child);
  });

  it('layer compaction of a disk in use: its content is the same each time, and it has few layers in the end', async () => {
    const folder = join(home, 'vms', EPHEMERAL, 'disk');
    const layers = async (): Promise<number> => (await readChain(folder))?.layers.length ?? 0;
    const capture = async (): Promise<void> => {
      captured += 1;
      await runner.sh(EPHEMERAL, `echo ${captured} > /data/n${captured}; sync`);
      await runner.snapshot(snapshotOf(captured, EPHEMERAL, 'disk'));
    };
    for (const point of at('compaction', 'written', 'replaced')) {
      await runner.arm(point);
      const dead = runner.died();
      // A call may fail before the end of the runner is known: another one would fail, too.
      const failed = () => Promise.race([dead, sleep(COMES_TO_IT_MS, 'nothing', { ref: false })]);
      let how: string | undefined;
      for (const end = Date.now() + COMES_TO_IT_MS; Date.now() < end && how === undefined; ) {
        how = await Promise.race([dead, capture().then(nothing, failed)]);
      }
      assert.equal(how, 'SIGKILL', `the runner never came to ${point}`);
      runner = await RunnerProcess.open(home);
      await runner.sh(EPHEMERAL, 'echo 3 > /proc/sys/vm/drop_caches');
      await continues(EPHEMERAL, point);
    }
    for (let more = 0; more <= LAYERS_KEPT; more++) await capture();
    for (const end = Date.now() + CONTINUES_MS; (await layers()) > LAYERS_KEPT; await sleep(50))
      assert.ok(Date.now() < end, `it stays ${await layers()} layers`);
    const files = await runner.sh(EPHEMERAL, 'echo 3 > /proc/sys/vm/drop_caches; cat /data/n*');
    // One that was never answered may be missing; all others are there.
    assert.ok(files.trim().split('\n').length >= captured - 40 - 2, files);
    assert.match(files, new RegExp(`^${captured}$`, 'm'));
    assert.equal(await runner.sh(EPHEMERAL, 'dmesg | grep -iE "i/o error|ext4-fs error" || true'), '');
  });

  it('leaves nothing when all sandboxes and snapshots are removed', async () => {
    for (const n of [20, 21, ...Array.from({ length: captured - 40 }, (_, more) => 41 + more)]) {
      const gone = { ...snapshotOf(n, SOURCE, 'full'), generation: 2, desired: 'deleted' as const };
      assert.equal((await runner.snapshot(gone)).status, 'deleted');
    }
    for (const vmId of [SOURCE, EPHEMERAL]) await removed(vmId);
    await holdsOnly([], []);
  });
});

function nothing(): undefined {}

function snapshotOf(n: number, vmId: string, kind: 'disk' | 'full'): SnapshotAssignment {
  return { snapshot_id: id(n), generation: 1, desired: 'ready', vm_id: vmId, kind };
}
