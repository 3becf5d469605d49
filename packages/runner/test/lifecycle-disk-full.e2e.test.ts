import assert from 'node:assert/strict';
import { readdir, rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it, mock } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { RunningVm } from '../src/machine/index.ts';
import { run } from '../src/process/index.ts';
import { eventually } from '@releap/testing/eventually';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { vmFacts } from './support/runner-process.ts';
import { assertClock, TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ID = '77777777-2222-4333-8444-555555555555';
const OTHER = '77777777-2222-4333-8444-666666666666';
const MEM_MIB = 256;

let home: string;
let runner: TestRunner;
before(async () => {
  home = await temporaryFolder('releap-lf-');
  // A file system of its own, with little more than what a host keeps in reserve.
  await run('mount', ['-t', 'tmpfs', '-o', `size=${MEM_MIB + 400}m`, 'tmpfs', home]);
  runner = await TestRunner.open(home);
  runner.spec = { ...SPEC, vcpus: 1, mem_mib: MEM_MIB, scratch_mib: 64, ports: [] };
  runner.want(ID, 1, 'running');
  await runner.reported(1, 'running');
});
after(async () => {
  await runner.dispose().catch(() => undefined);
  await run('umount', [home]);
  await rm(home, { recursive: true });
});

const BLOCKED = /the host's disk is full: the sandbox is paused until there is space/;

/** What its file system writes by itself: a guest that has no space for that blocks on ENOSPC. */
const FOR_GUEST_MIB = 8;

async function fill(leaveMib: number): Promise<void> {
  await eventually('a disk that is full', async () => {
    const { bavail, bsize } = await statfs(home);
    // Other processes may take some of the space meanwhile.
    await run('fallocate', ['-l', String(bavail * bsize - leaveMib * 1024 * 1024), join(home, 'ballast')]);
    return true;
  });
}

describe('on a host whose disk is full', () => {
  it('a sandbox that has no space is not created, and says so', async () => {
    await fill(4);
    runner.want(OTHER, 2, 'running');
    const { error } = await runner.reported(2, 'failed');
    assert.match(error ?? '', /the host's disk .*is full/);
    await rm(join(home, 'ballast'));
    runner.want(OTHER, 3, 'deleted');
    await runner.reported(3, 'deleted');
    assert.deepEqual(await readdir(join(home, 'vms')), [ID]);
  });

  it('a running guest gets all of its memory: a full disk takes none of it', async () => {
    await fill(FOR_GUEST_MIB);
    const half = MEM_MIB / 2;
    await runner.sh(
      ID,
      `mount -o remount,size=90% /dev/shm; dd if=/dev/zero of=/dev/shm/all bs=1M count=${half} 2> /dev/null`,
    );
    assert.equal(await runner.sh(ID, 'echo alive'), 'alive\n');
    await rm(join(home, 'ballast'));
  });

  it('a guest that writes blocks on ENOSPC until there is space, also for the next runner, and loses nothing', async () => {
    await runner.sh(ID, 'rm /dev/shm/all; head -c 16000000 /dev/urandom > /dev/shm/data');
    await fill(0);
    await runner.sh(
      ID,
      '(dd if=/dev/shm/data of=/data conv=fsync && echo $? > /dev/shm/ended) > /dev/null 2>&1 &',
    );
    const { pid } = await vmFacts(home, ID);
    let generation = 3;
    const isBlocked = async (): Promise<true> => {
      generation += 1;
      runner.want(ID, generation, 'paused');
      const { error } = await runner.reported(generation, 'running', 'paused');
      assert.match(error ?? '', BLOCKED);
      return true;
    };
    await eventually('a guest that is blocked', isBlocked);

    await runner.detach();
    runner = await TestRunner.open(home);
    // If it is resumed at that very time, it does not.
    await eventually('a guest that is blocked for the next runner', isBlocked);
    // Long enough for the lag of a paused clock to show.
    await sleep(5_000);
    await rm(join(home, 'ballast'));
    await eventually('a guest that has written', async () => {
      assert.match(await runner.sh(ID, 'cat /dev/shm/ended'), /0/);
      return true;
    });
    await eventually('a clock that is right', async () => {
      await assertClock(() => runner.sh(ID, 'date +%s'));
      return true;
    });
    await runner.sh(ID, 'echo 3 > /proc/sys/vm/drop_caches; cmp /dev/shm/data /data; echo more >> /file');
    assert.equal((await vmFacts(home, ID)).pid, pid);
  });

  it('a pause whose copy takes the last space fails, and the sandbox continues when there is some', async () => {
    await runner.sh(ID, 'echo here > /dev/shm/here');
    const { persistent } = runner.machines;
    const begin = persistent.beginPause.bind(persistent);
    const beginning = mock.method(persistent, 'beginPause', async (vmId: string, running: RunningVm) => {
      const pausing = await begin(vmId, running);
      await fill(0);
      const written = runner.sh(ID, 'dd if=/dev/shm/data of=/more conv=fsync');
      written.catch(() => undefined);
      await eventually(
        'a guest that is blocked',
        async () => (await running.vm.isBlockedOnSpace()) || undefined,
      );
      return pausing;
    });
    runner.want(ID, 100, 'paused');
    await runner.reported(100, 'running');
    beginning.mock.restore();
    await rm(join(home, 'ballast'));
    assert.equal(await eventually('an answer', () => runner.sh(ID, 'cat /dev/shm/here')), 'here\n');
    await runner.sh(ID, 'rm /dev/shm/data');
  });

  it('a pause fails, and the sandbox continues to run until there is space', async () => {
    await runner.sh(ID, 'echo here > /dev/shm/here; echo file > /file');
    await fill(FOR_GUEST_MIB);
    runner.want(ID, 101, 'paused');
    const { error } = await runner.reported(101, 'running', 'paused');
    assert.match(error ?? '', /the host's disk is full: no space for the sandbox's memory/);
    await runner.reconciler.get(ID)?.idle();
    assert.equal(await runner.sh(ID, 'cat /dev/shm/here /file'), 'here\nfile\n');

    await rm(join(home, 'ballast'));
    runner.want(ID, 102, 'paused');
    await runner.reported(102, 'paused');
    runner.want(ID, 103, 'running', { start_from: 'memory' });
    await runner.reported(103, 'running');
    assert.equal(await runner.sh(ID, 'cat /dev/shm/here /file'), 'here\nfile\n');
  });
});
