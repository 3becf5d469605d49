import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { hash } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, afterEach, before, describe, it, mock } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { SandboxSpec } from '@releap/contract';
import { chainPath, readChain } from '../src/disk/disk-chain.ts';
import type { DiskChain } from '../src/disk/disk-chain.ts';
import { heldSystemPath } from '../src/machine/index.ts';
import { Precopy } from '../src/memory/precopy.ts';
import { identifyProcess, isAlive } from '../src/vmm/process-identity.ts';
import { QemuVm } from '../src/vmm/qemu/vm.ts';
import { firstBefore } from './support/first-before.ts';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { copiersOf, vmFacts } from './support/runner-process.ts';
import type { VmFacts } from './support/runner-process.ts';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TRACKS_WRITES } from './support/tracks-writes.ts';
import type { SnapshotObservation } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `61111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const SOURCE = id(1);
const SMALL: SandboxSpec = { ...SPEC, scratch_mib: 64, ports: [] };
const FILL = `mkdir -p /data; [ -e /data/file ] || dd if=/dev/urandom of=/data/file bs=1M count=1 2> /dev/null
  dd if=/dev/urandom of=/dev/shm/m bs=1M count=2 2> /dev/null; sync
  (cd /; sha256sum data/file dev/shm/m > /dev/shm/sums; head -n 1 /dev/shm/sums > /sums; sync)
  ${COUNTER}`;

let runner: TestRunner;
let generation = 1;
/** Its VMM before any capture. */
let first: VmFacts;
/** Children and snapshots. */
let last = 10;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-cf-'));
  runner.spec = SMALL;
  runner.want(SOURCE, generation, 'running');
  await runner.reported(generation, 'running', { of: SOURCE });
  await fill();
});
after(async () => await runner?.dispose());
afterEach(() => mock.restoreAll());

async function fill(): Promise<void> {
  await runner.sh(SOURCE, FILL);
  first = await vmFacts(runner.home, SOURCE);
}

/** @returns why there is no such child */
async function failedFork(): Promise<string> {
  last += 1;
  const child = id(last);
  runner.want(child, 1, 'running', {
    start_from: 'memory',
    spec: { ...SMALL, origin: { type: 'fork', vm_id: SOURCE } },
  });
  const { error } = await runner.reported(1, 'failed', { of: child });
  await runner.reconciler.get(child)?.idle();
  assert.deepEqual(await readdir(join(runner.home, 'vms')), [SOURCE]);
  assert.equal(runner.network.adopt(child), undefined);
  return error ?? '';
}

async function snapshot(): Promise<SnapshotObservation> {
  last += 1;
  const wanted = {
    snapshot_id: id(last),
    generation: 1,
    desired: 'ready',
    vm_id: SOURCE,
    kind: 'full',
  } as const;
  return await runner.snapshot(wanted);
}

/** @returns why there is no such snapshot */
async function failedSnapshot(): Promise<string> {
  const { status, error } = await snapshot();
  assert.equal(status, 'failed');
  assert.deepEqual(await readdir(join(runner.home, 'snapshots')), []);
  return error ?? '';
}

async function go(desired: 'running' | 'paused' | 'stopped', from?: 'disk' | 'memory'): Promise<void> {
  generation += 1;
  runner.want(SOURCE, generation, desired, from && { start_from: from });
  await runner.reported(generation, desired, { of: SOURCE });
  await runner.reconciler.get(SOURCE)?.idle();
}

async function counts(): Promise<void> {
  const check = 'cd /; sha256sum -c /dev/shm/sums';
  assert.match(await runner.sh(SOURCE, `${COUNTS}; ${check}`), /file: OK\n.*m: OK/);
}

/** The same VMM, with nothing of a capture left. */
async function continues(): Promise<void> {
  await runner.reconciler.get(SOURCE)?.idle();
  assert.equal(runner.reconciler.get(SOURCE)?.observation.status, 'running');
  await counts();
  await eventually('nothing is left of a capture', async () => {
    assert.deepEqual(await vmFacts(runner.home, SOURCE), first);
    assert.deepEqual(await copiersOf(first.pid), []);
    return true;
  });
}

/** It has failed, and its disk is as it was after the last sync. */
async function failedAndStartsAgain(): Promise<void> {
  const { error } = await runner.reported(generation, 'failed', { of: SOURCE });
  assert.match(error ?? '', /the micro-VM ended by itself/);
  await runner.reconciler.get(SOURCE)?.idle();
  await go('stopped');
  await go('running', 'disk');
  assert.match(await runner.sh(SOURCE, 'cd /; sha256sum -c /sums'), /file: OK/);
  await fill();
}

async function diskOf(folder: string): Promise<DiskChain> {
  const chain = await readChain(folder);
  assert.ok(chain !== undefined);
  return chain;
}

/** Hashes of the layers of the disk in a folder. */
async function contentOf(folder: string): Promise<string[]> {
  const chain = await diskOf(folder);
  return await Promise.all(
    chain.layers.map(async (name) => hash('sha256', await readFile(chainPath(chain, name)))),
  );
}

async function killed(...pids: number[]): Promise<void> {
  for (const pid of pids) process.kill(pid, 'SIGKILL');
  for (const pid of pids) {
    while ((await readdir(`/proc/${pid}/task`).catch(() => [])).length > 0) await sleep(5);
  }
}

/** Once, before the rest of a paused source's memory is copied. */
function beforeItIsTaken(work: () => Promise<unknown>): void {
  firstBefore(Precopy.prototype, 'take', work);
}

/** Once, while the memory of a running source is copied. */
function whileItIsCopied(work: () => Promise<unknown>): void {
  firstBefore(Precopy.prototype, 'approach', work);
}

describe('kill -9 of the helper that copies memory', () => {
  const killHelper = async (): Promise<void> => {
    const helpers = await copiersOf(first.pid);
    assert.equal(helpers.length, 1);
    for (const pid of helpers) process.kill(pid, 'SIGKILL');
    while ((await copiersOf(first.pid)).length > 0) await sleep(5);
  };

  it('before it copies: the fork fails with the reason, and the source continues', async () => {
    beforeItIsTaken(killHelper);
    assert.match(await failedFork(), /memory of a running micro-VM could not be copied/);
    await continues();
  });

  it('while pages are copied: fork and snapshot fail with the reason, and the source continues', async () => {
    whileItIsCopied(killHelper);
    assert.match(await failedFork(), /could not be copied/);
    await continues();
    whileItIsCopied(killHelper);
    assert.match(await failedSnapshot(), /memory of a running micro-VM could not be copied/);
    await continues();
    assert.equal((await snapshot()).status, 'ready');
  });
});

describe("a fork whose child's disk cannot be made", () => {
  it('fails when its memory is not copied any more, so that the next one may start', async () => {
    let copies = 0;
    // In the place of a link to its system disk.
    beforeItIsTaken(async () => await mkdir(heldSystemPath(join(runner.home, 'vms', id(last), 'keep'))));
    whileItIsCopied(async () => {
      copies += 1;
      await sleep(500);
      copies -= 1;
    });
    assert.match(await failedFork(), /EISDIR/);
    assert.equal(copies, 0);
    assert.deepEqual(await copiersOf(first.pid), []);
    await continues();
  });
});

const untraced = TRACKS_WRITES ? false : 'only with Linux 6.7 is a VMM traced';

describe('a VMM that cannot be traced', { skip: untraced }, () => {
  /** A process has one tracer at most. */
  async function trace(): Promise<AsyncDisposable> {
    const tracer = spawn('perl', [
      '-e',
      '$| = 1; syscall( 101, 0x4206, $ARGV[0] + 0, 0, 0 ) == 0 or die; print 1; readline(STDIN)',
      String(first.pid),
    ]);
    await once(tracer.stdout, 'data');
    return {
      [Symbol.asyncDispose]: async () => {
        const ended = once(tracer, 'exit');
        tracer.stdin.end();
        await ended;
      },
    };
  }

  /** Writes of a VMM that was captured before are tracked already, for which it is not traced. */
  async function untracked(): Promise<void> {
    await go('paused');
    await go('running', 'memory');
    first = await vmFacts(runner.home, SOURCE);
  }

  it('is not captured; a capture after that never changes again, however often it failed', async () => {
    await untracked();
    await runner.sh(SOURCE, 'echo 1 > /before; sync');
    const layers = (await diskOf(join(runner.home, 'vms', SOURCE, 'keep'))).layers.length;
    {
      await using _tracer = await trace();
      for (let tries = 0; tries < 3; tries++) assert.equal((await snapshot()).status, 'failed');
    }
    const { status, snapshot_id } = await snapshot();
    assert.equal(status, 'ready');
    // Only a successful capture adds a layer.
    assert.equal((await diskOf(join(runner.home, 'vms', SOURCE, 'keep'))).layers.length, layers + 1);
    const folder = join(runner.home, 'snapshots', snapshot_id);
    const then = await contentOf(folder);
    await runner.sh(SOURCE, 'dd if=/dev/urandom of=/after bs=64k count=8 2> /dev/null; sync; rm /after');
    assert.deepEqual(await contentOf(folder), then);
    await continues();
  });

  it('is not forked, with the reason; it can be paused all the same', async () => {
    await untracked();
    const tracer = await trace();
    assert.match(
      await failedFork(),
      /memory of a running micro-VM could not be copied: ptrace.*not permitted/,
    );
    await continues();
    await go('paused');
    await tracer[Symbol.asyncDispose]();
    await go('running', 'memory');
    await counts();
    first = await vmFacts(runner.home, SOURCE);
  });
});

describe('a kernel that cannot track writes', () => {
  it('forks, snapshots and pauses with all that the guest has written, while the guest is paused', async () => {
    Precopy.tracksWrites = false;
    try {
      for (const n of [1, 2]) {
        last += 1;
        const child = id(last);
        runner.want(child, 1, 'running', {
          start_from: 'memory',
          spec: { ...SMALL, origin: { type: 'fork', vm_id: SOURCE } },
        });
        await runner.reported(1, 'running', { of: child });
        assert.match(
          await runner.sh(child, `${COUNTS}; cd /; sha256sum -c /dev/shm/sums`),
          /m: OK/,
          `fork ${n}`,
        );
        runner.want(child, 2, 'deleted');
        await runner.reported(2, 'deleted', { of: child });
      }
      await continues();
      assert.equal((await snapshot()).status, 'ready');
      await go('paused');
      await go('running', 'memory');
      await counts();
      first = await vmFacts(runner.home, SOURCE);
    } finally {
      Precopy.tracksWrites = true;
    }
  });
});

describe("kill -9 of the child's VMM", () => {
  it('while it is restored: the child has failed with the reason, and nothing is left of it', async () => {
    firstBefore(QemuVm.prototype, 'loadState', async ({ identity }) => await killed(identity.pid));
    assert.match(await failedFork(), /VMM?\b/);
    await continues();
  });
});

describe("kill -9 of the source's VMM", () => {
  it('between freeze and thaw: the fork fails, and the source with the reason; its disk is whole', async () => {
    beforeItIsTaken(async () => await killed(first.pid));
    assert.notEqual(await failedFork(), '');
    await failedAndStartsAgain();
  });

  it('between freeze and thaw of a snapshot: the same', async () => {
    beforeItIsTaken(async () => await killed(first.pid));
    const before = await readdir(join(runner.home, 'snapshots'));
    assert.equal((await snapshot()).status, 'failed');
    assert.deepEqual(await readdir(join(runner.home, 'snapshots')), before);
    await failedAndStartsAgain();
  });

  it('while its memory is copied: the snapshot is whole or has failed, and the source has failed', async () => {
    whileItIsCopied(async () => await killed(first.pid));
    const before = await readdir(join(runner.home, 'snapshots'));
    const { status, snapshot_id } = await snapshot();
    const folders = status === 'ready' ? [...before, snapshot_id] : before;
    assert.deepEqual((await readdir(join(runner.home, 'snapshots'))).sort(), folders.sort());
    assert.deepEqual(await copiersOf(first.pid), []);
    await failedAndStartsAgain();
  });

  it('while its helper copies, the helper killed too: every outcome is definite', async () => {
    const source = identifyProcess(first.pid);
    const helpers = async (): Promise<void> => {
      for (const pid of await copiersOf(first.pid)) process.kill(pid, 'SIGKILL');
    };
    // Not waited for: the copy is asked for meanwhile.
    beforeItIsTaken(async () => await Promise.resolve(void helpers()));
    const { status } = await snapshot();
    assert.ok(['ready', 'failed'].includes(status));
    await runner.reconciler.get(SOURCE)?.idle();
    // Killed in the very microseconds in which it has stopped a thread of the VMM, it takes the VMM with it: that is a failure
    // with a reason, too. A killed VMM is not gone at once: only one that still responds continues.
    const wrong = await continues().then(
      () => undefined,
      (error: unknown) => error,
    );
    if (wrong === undefined) return;
    for (const end = Date.now() + 10_000; isAlive(source); await sleep(5)) if (Date.now() > end) throw wrong;
    await failedAndStartsAgain();
  });
});
