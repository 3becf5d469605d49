import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { GuestClient, nowNs } from '../src/guest/index.ts';
import { ImageStore } from '../src/image/image-store.ts';
import type { RunningVm } from '../src/machine/index.ts';
import { PATIENCE_MS } from '@releap/testing/eventually';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { BUILD_DIR, log, SHAPE, testMachines, TestSlot } from './support/machines.ts';

/** On an idle machine the error is below 100. */
const CLOCK_TOLERANCE_MS = 3_000;

let slot: TestSlot;
let service: Awaited<ReturnType<typeof testMachines>>;
let running: RunningVm;
let guest: GuestClient;

before(async () => {
  const images = new ImageStore({ cacheDir: TEST_CACHE, log, packagesDir: join(BUILD_DIR, 'packages') });
  const rootImagePath = (await images.ensure({ type: 'builtin', name: 'busybox' })).path;
  await images.close();
  slot = new TestSlot(0);
  service = await testMachines();
  running = await service.machines.boot({
    vmId: 'frozen',
    slot,
    shape: SHAPE,
    disks: { rootImagePath, scratchMib: 64 },
    cpu: { guaranteed: 0.5, max: 2 },
  });
  guest = await GuestClient.open(running.agentSocketPath, { log });
  await guest.configure(
    {
      hostname: 'frozen',
      machineId: randomBytes(16).toString('hex'),
      clockNs: nowNs(),
      entropy: randomBytes(32),
      disks: { root: { device: 'vda' }, scratch: { device: 'vdb', bytes: running.diskBytes.scratch } },
    },
    { deadlineMs: PATIENCE_MS },
  );
  await background('i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; done');
});
after(async () => {
  guest?.close();
  running?.vm.detach();
  await service?.[Symbol.asyncDispose]();
  slot?.[Symbol.dispose]();
});

async function sh(shell: string): Promise<string> {
  const child = guest.exec({ shell, timeoutMs: 60_000 });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      text += chunk.toString();
    });
  }
  const { exitCode } = await child.exit;
  assert.equal(exitCode, 0, `${shell}: ${text}`);
  return text.trim();
}

/** Starts a command that keeps running; returns its process group. */
async function background(shell: string): Promise<string> {
  await guest.files.write('/dev/shm/command', Buffer.from(shell));
  return await sh(
    "setsid sh -c 'echo $$ > /dev/shm/group; . /dev/shm/command' > /dev/null 2>&1 & while [ ! -s /dev/shm/group ]; do sleep 0.01; done; cat /dev/shm/group; rm /dev/shm/group",
  );
}

async function contents(path: string): Promise<string> {
  const file = guest.files.read(path);
  let text = '';
  file.on('data', (chunk: Buffer) => {
    text += chunk.toString();
  });
  await once(file, 'end');
  return text.trim();
}

/** Resolves when the counting process of this sandbox has counted on. */
async function counts(): Promise<void> {
  const from = await contents('/dev/shm/count');
  for (let now = from; now === from || now === ''; ) now = await contents('/dev/shm/count');
}

/** Waits for the state of a process, a letter of proc(5). */
async function becomes(pid: string, state: string): Promise<void> {
  await sh(`while ! grep -q ") ${state} " /proc/${pid}/stat; do sleep 0.01; done`);
}

async function assertStands(): Promise<void> {
  const from = await contents('/dev/shm/count');
  await new Promise((resolve) => setTimeout(resolve, 60));
  assert.equal(await contents('/dev/shm/count'), from);
}

describe('a freeze', () => {
  it('stops the processes at once, reports how long each step took, and thaw resumes them', async () => {
    await guest.sync();
    const { stepsUs } = await guest.freeze({ processesOnly: true });
    assert.deepEqual(Object.keys(stepsUs).sort(), ['disk', 'processes', 'wait']);
    assert.equal(stepsUs['disk'], 0);
    await assertStands();
    await assert.rejects(guest.freeze(), { code: 'frozen' });
    assert.equal((await guest.hello()).frozen, false, 'a HELLO tells what was when it was said');
    await guest.thaw();
    await counts();
  });

  it('of the disk alone lets processes run, and blocks those that write', async () => {
    const { stepsUs } = await guest.freeze({ diskOnly: true });
    assert.ok((stepsUs['disk'] ?? 0) > 0);
    assert.equal(stepsUs['processes'], 0);
    await counts();
    await guest.thaw();
    await guest.freeze();
    await assertStands();
    await guest.thaw();
    await counts();
    const flushed = await guest.freeze({ flushOnly: true });
    await assertStands();
    assert.ok((flushed.stepsUs['disk'] ?? 0) > 0);
    await guest.thaw();
    await counts();
    await assert.rejects(guest.freeze({ diskOnly: true, processesOnly: true }), { code: 'invalid' });
  });

  it('is over by itself after its deadline', async () => {
    await guest.freeze({ processesOnly: true, thawAfterMs: 100 });
    await counts();
    while ((await guest.status()).frozen) await new Promise((resolve) => setTimeout(resolve, 1));
  });

  it('does not wait for a process that waits for its disk', async () => {
    // The user's own freeze of the file system: writers wait in the kernel, in uninterruptible sleep.
    await sh('mkdir -p /own && mount -t ext4 /dev/vdb /own && fsfreeze --freeze /own');
    const writer = await background('echo written > /waited');
    await becomes(writer, 'D');
    const { inKernel } = await guest.freeze({ processesOnly: true });
    assert.equal(inKernel, true);
    await assertStands();
    await guest.thaw();
    await counts();
    // Its disk is frozen already, by another process.
    await assert.rejects(guest.freeze(), { code: 'internal' });
    await counts();
    await sh(
      'fsfreeze --unfreeze /own; while [ "$(cat /waited)" != written ]; do sleep 0.01; done; umount /own',
    );
  });

  it('leaves stopped processes stopped', async () => {
    const stopped = await background('kill -STOP $$');
    await becomes(stopped, 'T');
    await guest.freeze({ processesOnly: true });
    await guest.thaw();
    await becomes(stopped, 'T');
    await sh(`kill -KILL ${stopped}`);
  });

  it('ends in time whatever processes do, and restores them when it fails', async () => {
    const forking = await background(
      'for i in 1 2 3 4 5 6; do (while :; do /bin/true; (:); done) & done; wait',
    );
    for (let round = 0; round < 3; round += 1) {
      await guest.freeze({ processesOnly: true, settleMs: 2_000 }).then(assertStands, assertSettled);
      await guest.thaw();
    }
    await sh(`kill -KILL -${forking}`);
    await counts();

    // A user who is root finds the freezer, and thaws the frozen processes from outside of it.
    await sh('mkdir -p /freezer && mount -t cgroup -o freezer none /freezer');
    const thawing = await background(
      'echo $$ > /freezer/tasks; while :; do echo THAWED > /freezer/user/freezer.state; done',
    );
    for (let round = 0; round < 3; round += 1) {
      await guest.freeze({ processesOnly: true, settleMs: 300 }).catch(assertSettled);
      await guest.thaw();
    }
    await sh(`kill -KILL ${thawing}`);
    await counts();

    // A cgroup that its user froze before stays frozen.
    const kept = await background(
      'mkdir /freezer/user/own; echo $$ > /freezer/user/own/tasks; while :; do date > /own-count; done',
    );
    await sh('echo FROZEN > /freezer/user/own/freezer.state');
    await guest.freeze({ processesOnly: true, settleMs: 30_000 });
    await assertStands();
    await guest.thaw();
    assert.equal(await sh('cat /freezer/user/own/freezer.state'), 'FROZEN');
    // The mount is busy until the process is gone.
    await sh(
      `echo THAWED > /freezer/user/own/freezer.state; kill -KILL ${kept}; until umount /freezer; do sleep 0.1; done`,
    );
    await counts();
  });
});

describe('a thaw that is written while the virtual CPUs are paused', () => {
  it('is done when they resume, and sets the clock that was paused with them', async () => {
    await guest.freeze({ processesOnly: true });
    const before = await contents('/proc/uptime');
    await running.vm.stop();
    await new Promise((resolve) => setTimeout(resolve, CLOCK_TOLERANCE_MS + 1_000));
    const thawed = guest.thaw({ clockNs: nowNs() });
    await running.vm.continue();
    const { clockNs } = await thawed;
    await counts();
    assert.ok((await guest.setClock(clockNs)) < CLOCK_TOLERANCE_MS);
    assert.ok(Number.parseFloat(await contents('/proc/uptime')) >= Number.parseFloat(before));
  });
});

function assertSettled(error: unknown): void {
  assert.equal((error as { code?: unknown }).code, 'state');
}
