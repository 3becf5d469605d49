import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { programOf } from '@releap/testing/program';
import { sampleOf } from '@releap/testing/repetitions';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isAlive } from '../src/vmm/process-identity.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { assertClock, TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import type { Assignment } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const CHILD = programOf(fileURLToPath(new URL('support/lifecycle-child.ts', import.meta.url)));
const ID = '99999999-2222-4333-8444-555555555555';

let home: string;
let generation = 1;
/** One process that works on the sandbox at a time. */
let runner: TestRunner | undefined;
before(async () => {
  home = await temporaryFolder('releap-lx-');
  runner = await TestRunner.open(home);
  runner.want(ID, generation, 'running');
  await runner.reported(generation, 'running');
});
after(async () => {
  runner ??= await TestRunner.open(home);
  await runner.dispose();
});

type Step = Pick<Assignment, 'desired' | 'start_from'>;

const PAUSED: Step = { desired: 'paused' };
const STOPPED: Step = { desired: 'stopped' };
const RESUMED: Step = { desired: 'running', start_from: 'memory' };
const STARTED: Step = { desired: 'running', start_from: 'disk' };

async function opened(): Promise<TestRunner> {
  runner ??= await TestRunner.open(home);
  return runner;
}

async function go(step: Step): Promise<void> {
  const live = await opened();
  generation += 1;
  live.want(ID, generation, step.desired, step);
  await live.reported(generation, step.desired);
  await live.reconciler.get(ID)?.idle();
}

/** Another process takes the sandbox over, gets the assignment, and kills itself at the failpoint. */
async function crashAt(point: string, step: Step): Promise<void> {
  await runner?.detach();
  runner = undefined;
  generation += 1;
  const folder = join(home, 'crash');
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, point), '');
  const steps = JSON.stringify([{ generation, ...step, spec: SPEC }]);
  const child = spawn(process.execPath, [CHILD, home, ID, steps], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, RELEAP_CRASH_AT: folder },
  });
  const [, signal] = (await once(child, 'exit')) as [number | null, string | null];
  assert.equal(signal, 'SIGKILL', `the runner never came to ${point}`);
}

/** The next runner, with the same assignment: the operation ends as if there had been no crash. */
async function finish(step: Step): Promise<void> {
  const live = await opened();
  live.want(ID, generation, step.desired, step);
  await live.reported(generation, step.desired);
  await live.reconciler.get(ID)?.idle();
}

const sh = async (shell: string): Promise<string> => await (await opened()).sh(ID, shell);

/** Exactly as many VMMs and network slots as what runs. */
async function holdsNothingElse(): Promise<void> {
  const live = await opened();
  const runs = live.reconciler.get(ID)?.isRunning === true;
  const record = await readFile(join(home, 'vms', ID, 'vm.json'), 'utf8').catch(() => undefined);
  assert.equal(record !== undefined, runs);
  assert.equal(live.network.adopt(ID) !== undefined, runs);
  if (record !== undefined) assert.ok(isAlive(JSON.parse(record).process));
}

const PAUSING = ['recorded', 'frozen', 'stopped', 'saved', 'renamed', 'marked', 'ended', 'paused'];
const RESUMING = ['recorded', 'slot', 'held', 'loaded', 'consumed', 'continued', 'thawed', 'running'];
const STOPPING = ['recorded', 'down', 'ended', 'stopped'];
const STARTING = ['recorded', 'discarded', 'restored', 'configured', 'booted', 'running'];

describe('a runner that is killed in the middle of', () => {
  for (const [index, pausing] of sampleOf([...PAUSING.entries()], 3)) {
    const resuming = RESUMING[index] ?? '';
    it(`pause:${pausing}, then of resume:${resuming}, is followed by one that ends it; nothing is lost`, async () => {
      await sh(`echo ${pausing} > /dev/shm/here; echo ${pausing} > /unsynced`);
      await crashAt(`pause:${pausing}`, PAUSED);
      await finish(PAUSED);
      await holdsNothingElse();
      await crashAt(`resume:${resuming}`, RESUMED);
      await finish(RESUMED);
      await holdsNothingElse();
      assert.equal(await sh('cat /dev/shm/here /unsynced'), `${pausing}\n${pausing}\n`);
    });
  }

  it('a pause, leaves no guest paused: it runs until control says what is wanted', async () => {
    await sh(
      `(while :; do date +%s%N > /dev/shm/next; mv /dev/shm/next /dev/shm/tick; usleep 300000; done) > /dev/null 2>&1 &
       while [ ! -e /dev/shm/tick ]; do usleep 10000; done`,
    );
    await crashAt('pause:saved', PAUSED);
    const first = await sh('cat /dev/shm/tick');
    while ((await sh('cat /dev/shm/tick')) === first);
    await finish(PAUSED);
    await go(RESUMED);
  });

  for (const [index, starting] of sampleOf([...STARTING.entries()], 3)) {
    const stopping = STOPPING[index];
    const before = stopping === undefined ? 'a pause' : `stop:${stopping}`;
    it(`${before}, then of start:${starting}, is followed by one that ends it; the disk is whole`, async () => {
      await sh(`echo ${starting} > /file; echo gone > /dev/shm/here`);
      if (stopping === undefined) {
        await go(PAUSED);
      } else {
        await crashAt(`stop:${stopping}`, STOPPED);
        await finish(STOPPED);
        await holdsNothingElse();
      }
      await crashAt(`start:${starting}`, STARTED);
      await finish(STARTED);
      await holdsNothingElse();
      assert.equal(await sh('cat /file; ls /dev/shm'), `${starting}\n`);
    });
  }
});

describe('a VMM that is killed', () => {
  async function kill(): Promise<void> {
    const record = await readFile(join(home, 'vms', ID, 'vm.json'), 'utf8');
    process.kill(JSON.parse(record).process.pid, 'SIGKILL');
  }

  it('fails its sandbox, whose disk is kept and can be started again', async () => {
    await sh('echo synced > /file; sync; echo not > /other');
    await kill();
    await assert.rejects((await opened()).reported(generation, 'stopped'), /the micro-VM ended by itself/);
    await go(STOPPED);
    await go(STARTED);
    assert.equal(await sh('cat /file'), 'synced\n');
  });
});

describe('saved memory', () => {
  const keep = (name: string): string => join(home, 'vms', ID, 'keep', name);

  it('is not resumed on another machine, with the reason, and the disk can be started', async () => {
    await sh('echo kept > /file');
    await go(PAUSED);
    const live = await opened();
    const paused = JSON.parse(await readFile(keep('paused.json'), 'utf8'));
    await writeFile(keep('paused.json'), JSON.stringify({ ...paused, vmm: 'QEMU 1.0' }));
    generation += 1;
    live.want(ID, generation, 'running', RESUMED);
    const refused = await live.reported(generation, 'paused', 'running');
    assert.match(refused.error ?? '', /VMM QEMU 1\.0, here .*memory is kept.*start discards it/);
    assert.notEqual(refused.memory, false);
    await live.reconciler.get(ID)?.idle();
    await go(STARTED);
    assert.equal(await sh('cat /file'), 'kept\n');
  });

  it('that does not load stays, and the sandbox stays paused', async () => {
    await go(PAUSED);
    const live = await opened();
    await copyFile(keep('state'), keep('good'));
    const { size } = await stat(keep('state'));
    await writeFile(keep('state'), Buffer.alloc(size, 7));
    generation += 1;
    live.want(ID, generation, 'running', RESUMED);
    const refused = await live.reported(generation, 'paused', 'running');
    assert.match(refused.error ?? '', /could not be restored/);
    await live.reconciler.get(ID)?.idle();
    await copyFile(keep('good'), keep('state'));
    await rm(keep('good'));
    await go(RESUMED);
  });

  it('resumed twice, draws different random numbers and has the right time', async () => {
    await go(PAUSED);
    const copies = await temporaryFolder('releap-copy-');
    const names = ['memory', 'state', 'paused.json', 'layer-0.qcow2', 'system.squashfs'];
    for (const name of names) await copyFile(keep(name), join(copies, name));
    const drawn: string[] = [];
    for (let turn = 0; turn < 2; turn += 1) {
      await go(RESUMED);
      drawn.push(await sh('head -c 64 /dev/urandom | sha256sum'));
      await assertClock(async () => await sh('date +%s'));
      if (turn === 0) {
        await go(STOPPED);
        await runner?.detach();
        runner = undefined;
        for (const name of names) await copyFile(join(copies, name), keep(name));
      }
    }
    assert.equal(new Set(drawn).size, 2);
    await rm(copies, { recursive: true });
  });
});
