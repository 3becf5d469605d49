import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { Assignment } from '../src/reconcile/assignment.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { RunnerProcess } from './support/runner-process.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `71111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const SOURCE = id(1);
const WAITING = 1;
const COMES_TO_IT_MS = 240_000;
/** Each of these leaves the process that it runs in at that point. */
const STARTS = ['create:slot', 'start:restored', 'start:configured', 'start:running'];
const FORKS = ['fork:slot', 'fork:copied', 'fork:loaded', 'fork:thawed', 'fork:running'];

let home: string;
let runner: RunnerProcess;
let generation = 1;
before(async () => {
  home = await temporaryFolder('releap-wv-');
  runner = await RunnerProcess.open(home, WAITING);
  await runner.warmedUp();
  await want('running');
  await runner.sh(SOURCE, 'echo disk > /kept; sync');
});
after(async () => {
  await runner?.close().catch(() => undefined);
  await (await TestRunner.open(home)).dispose();
});

async function want(desired: 'running' | 'stopped', more: Partial<Assignment> = {}): Promise<void> {
  generation += 1;
  await runner.want(SOURCE, generation, desired, more);
  await runner.reported(SOURCE, generation, desired);
}

/** Kills the runner at a point of what `act` begins, and opens the next one. */
async function crashAt(point: string, act: () => Promise<unknown>): Promise<void> {
  await runner.arm(point);
  void act().catch(() => undefined);
  const how = await Promise.race([runner.died(), sleep(COMES_TO_IT_MS, 'nothing', { ref: false })]);
  assert.equal(how, 'SIGKILL', `the runner never came to ${point}`);
  runner = await RunnerProcess.open(home, WAITING);
}

/** Folders of VMs, without those that wait. */
async function folders(): Promise<string[]> {
  return (await readdir(join(home, 'vms'))).filter((name) => !name.startsWith('warm-')).sort();
}

it('a sandbox that is started takes a VM that waits, and has its own disk', async () => {
  await want('stopped');
  await runner.warmedUp();
  const waiting = (await readdir(join(home, 'vms'))).filter((name) => name.startsWith('warm-'));
  await want('running', { start_from: 'disk' });
  assert.equal(await runner.sh(SOURCE, 'cat /kept'), 'disk\n');
  const left = await readdir(join(home, 'vms'));
  assert.equal(waiting.filter((name) => !left.includes(name)).length, 1, 'one of those that waited');
});

it('the runner is killed while one is started on a VM that waits: its disk is whole, and it runs in the end', async () => {
  for (const point of STARTS) {
    await want('stopped');
    await runner.warmedUp();
    const start = { start_from: 'disk' } as const;
    await crashAt(point, async () => await want('running', start));
    await runner.want(SOURCE, generation, 'running', start);
    await runner.reported(SOURCE, generation, 'running');
    assert.equal(await runner.sh(SOURCE, 'cat /kept'), 'disk\n', point);
    assert.deepEqual(await folders(), [SOURCE], point);
  }
});

it('a fork resumes in a waiting VMM, with all of its memory, also after the runner was killed', async () => {
  // So much that no fork shares its memory with the one before.
  const script = `dd if=/dev/urandom of=/dev/shm/seed bs=1M count=1 2> /dev/null
    cat ${'/dev/shm/seed '.repeat(28)} > /dev/shm/m; md5sum /dev/shm/m`;
  let n = 10;
  const begin = async (child: string): Promise<void> => {
    const spec = { ...SPEC, name: 'child', origin: { type: 'fork' as const, vm_id: SOURCE } };
    await runner.want(child, 1, 'running', { spec, start_from: 'memory' });
  };
  for (const point of [undefined, ...FORKS]) {
    const sum = await runner.sh(SOURCE, script);
    const child = id(n++);
    await runner.warmedUp();
    const waiting = (await readdir(join(home, 'vms'))).filter((name) => name.startsWith('warm-'));
    if (point !== undefined) await crashAt(point, async () => await begin(child));
    await begin(child);
    await runner.reported(child, 1, 'running');
    assert.equal(await runner.sh(child, 'md5sum /dev/shm/m; hostname'), `${sum}child\n`, point);
    assert.equal(await runner.sh(SOURCE, 'md5sum /dev/shm/m; cat /kept'), `${sum}disk\n`, point);
    if (point === undefined) {
      const left = await readdir(join(home, 'vms'));
      assert.equal(waiting.filter((name) => !left.includes(name)).length, 1, 'one of those that waited');
    }
    await runner.want(child, 2, 'deleted');
    await runner.reported(child, 2, 'deleted');
    assert.deepEqual(await folders(), [SOURCE], point);
  }
});
