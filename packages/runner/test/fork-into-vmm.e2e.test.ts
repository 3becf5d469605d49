/** Forks whose memory is copied into a VMM that waits. */
import assert from 'node:assert/strict';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, afterEach, before, describe, it, mock } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { SandboxSpec } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { VmRecord } from '../src/machine/vm-folder.ts';
import { guestMemoryFile } from '../src/memory/guest-memory.ts';
import { Precopy } from '../src/memory/precopy.ts';
import { isAlive } from '../src/vmm/process-identity.ts';
import type { ProcessIdentity } from '../src/vmm/process-identity.ts';
import { firstBefore } from './support/first-before.ts';
import { copiersOf, vmFacts } from './support/runner-process.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';
import { TRACKS_WRITES } from './support/tracks-writes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `81111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const SOURCE = id(1);
const SMALL: SandboxSpec = { ...SPEC, scratch_mib: 64, ports: [] };
const FILL = `mkdir -p /data; dd if=/dev/urandom of=/data/file bs=1M count=1 2> /dev/null
  dd if=/dev/urandom of=/dev/shm/m bs=1M count=4 2> /dev/null; dd if=/dev/zero of=/dev/shm/zeros bs=1M count=1 2> /dev/null
  (cd /; sha256sum data/file dev/shm/m dev/shm/zeros > /dev/shm/sums)
  ${COUNTER}`;

let runner: TestRunner;
let last = 10;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-fv-'), { waiting: 1 });
  runner.spec = SMALL;
  runner.want(SOURCE, 1, 'running');
  await runner.reported(1, 'running', { of: SOURCE });
  await runner.sh(SOURCE, FILL);
});
after(async () => await runner?.dispose());
afterEach(() => mock.restoreAll());

function begin(): string {
  last += 1;
  const spec = { ...SMALL, name: 'child', origin: { type: 'fork' as const, vm_id: SOURCE } };
  runner.want(id(last), 1, 'running', { start_from: 'memory', spec });
  return id(last);
}

async function isWhole(vmId: string): Promise<void> {
  const check = 'cd /; sha256sum -c /dev/shm/sums';
  assert.match(await runner.sh(vmId, `${COUNTS}; ${check}`), /file: OK\n.*m: OK\n.*zeros: OK/);
}

async function removed(vmId: string, generation = 9): Promise<void> {
  runner.want(vmId, generation, 'deleted');
  await runner.reported(generation, 'deleted', { of: vmId });
}

/** The VMM that waits for a fork. It is the only one whose guest has no disks. */
async function waitingVmm(): Promise<{ name: string; process: ProcessIdentity }> {
  await runner.warmedUp();
  const folder = join(runner.home, 'vms');
  for (const name of await readdir(folder)) {
    if (!name.startsWith('warm-')) continue;
    // One that is being made may have no record yet.
    const text = await readFile(join(folder, name, 'vm.json'), 'utf8').catch(() => '{}');
    const record = JSON.parse(text) as Partial<VmRecord>;
    if (record.diskBytes === undefined && record.memoryOrigin !== undefined && record.process !== undefined)
      return { name, process: record.process };
  }
  throw new Error('none waits');
}

/** No fork before tells that its source will have more children. */
function forgotten(): void {
  runner.machines.captures.forget(SOURCE);
}

/** Once, while the memory of the source is copied. */
function whileItIsCopied(work: () => Promise<unknown>): void {
  firstBefore(Precopy.prototype, 'approach', work);
}

async function nothingIsLeft(child: string): Promise<void> {
  await runner.reconciler.get(child)?.idle();
  assert.equal(runner.network.adopt(child), undefined);
  const { pid } = await vmFacts(runner.home, SOURCE);
  await eventually('nothing is left of the fork', async () => {
    const names = (await readdir(join(runner.home, 'vms'))).filter((name) => !name.startsWith('warm-'));
    assert.ok(!names.includes(child), names.join());
    assert.deepEqual(await copiersOf(pid), []);
    assert.equal(runner.machines.memoryBudget.held.mem_mib, 0);
    return true;
  });
}

describe('a fork that is copied into a waiting VMM', () => {
  it('has the memory of its source as its own; nothing of it is held for others', async () => {
    const vmm = await waitingVmm();
    const child = begin();
    await runner.reported(1, 'running', { of: child });
    assert.equal((await vmFacts(runner.home, child)).pid, vmm.process.pid);
    await isWhole(child);
    await isWhole(SOURCE);
    assert.equal(runner.machines.memoryBudget.held.mem_mib, 0);
    assert.equal(await runner.sh(child, 'hostname'), 'child\n');
    // Its own captures have what was copied to it.
    runner.want(child, 2, 'paused');
    await runner.reported(2, 'paused', { of: child });
    runner.want(child, 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: child });
    await isWhole(child);
    await removed(child);
  });

  it('is followed by forks that share their memory, while the source writes little', async () => {
    forgotten();
    const children: string[] = [];
    const files: number[] = [];
    for (let n = 0; n < 3; n++) {
      await runner.warmedUp();
      const child = begin();
      await runner.reported(1, 'running', { of: child });
      children.push(child);
      const { pid } = await vmFacts(runner.home, child);
      files.push((await stat(guestMemoryFile(pid))).ino);
      await isWhole(child);
    }
    const [first, second, third] = files;
    if (TRACKS_WRITES) {
      assert.notEqual(first, second);
      assert.equal(second, third);
      assert.notEqual(runner.machines.memoryBudget.held.mem_mib, 0);
    }
    for (const child of children) await removed(child);
    forgotten();
  });

  it('is one all the same when that VMM ends meanwhile', async () => {
    forgotten();
    const vmm = await waitingVmm();
    whileItIsCopied(async () => {
      process.kill(vmm.process.pid, 'SIGKILL');
      while (isAlive(vmm.process)) await sleep(5);
    });
    const child = begin();
    await runner.reported(1, 'running', { of: child });
    await isWhole(child);
    await isWhole(SOURCE);
    assert.notEqual((await vmFacts(runner.home, child)).pid, vmm.process.pid);
    assert.ok(!(await readdir(join(runner.home, 'vms'))).includes(vmm.name));
    assert.equal(runner.network.adopt(vmm.name), undefined);
    await removed(child);
    forgotten();
  });

  it('leaves nothing when it is deleted meanwhile', async () => {
    forgotten();
    const vmm = await waitingVmm();
    const child = id(last + 1);
    whileItIsCopied(async () => await Promise.resolve(runner.want(child, 2, 'deleted')));
    begin();
    await runner.reported(2, 'deleted', { of: child });
    await nothingIsLeft(child);
    assert.equal(isAlive(vmm.process), false);
    assert.equal(runner.network.adopt(vmm.name), undefined);
    await isWhole(SOURCE);
  });

  it('runs when its source is deleted meanwhile', async () => {
    forgotten();
    await waitingVmm();
    whileItIsCopied(async () => await Promise.resolve(runner.want(SOURCE, 2, 'deleted')));
    const child = begin();
    await runner.reported(1, 'running', { of: child });
    await isWhole(child);
    await runner.reported(2, 'deleted', { of: SOURCE });
    await removed(child);
  });
});
