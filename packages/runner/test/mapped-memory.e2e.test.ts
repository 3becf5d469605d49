import assert from 'node:assert/strict';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { SandboxSpec } from '@releap/contract';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { RunnerProcess } from './support/runner-process.ts';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `a1111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const [SOURCE, ONE, OTHER, LATER] = [1, 2, 3, 4].map(id) as [string, string, string, string];
const SNAPSHOT = id(10);
const SMALL: SandboxSpec = { ...SPEC, scratch_mib: 64, ports: [] };
const FILL =
  'dd if=/dev/urandom of=/dev/shm/m bs=1M count=16 2> /dev/null; sha256sum /dev/shm/m > /dev/shm/sum';
/** Into the very pages that the others have. */
const OVERWRITE =
  'dd if=/dev/urandom of=/dev/shm/m bs=1M count=16 conv=notrunc 2> /dev/null; sha256sum /dev/shm/m > /dev/shm/sum';
const CHECK = 'sha256sum -c /dev/shm/sum';

let home: string;
let runner: RunnerProcess;
const generations = new Map<string, number>();
before(async () => {
  home = await temporaryFolder('releap-mm-');
  runner = await RunnerProcess.open(home);
  await go(SOURCE, 'running');
  await runner.sh(SOURCE, FILL);
  const { status, error } = await runner.snapshot(snapshot('ready'));
  assert.equal(status, 'ready', error);
});
after(async () => {
  await runner?.close().catch(() => undefined);
  await (await TestRunner.open(home)).dispose();
});

function snapshot(desired: 'ready' | 'deleted') {
  const generation = desired === 'ready' ? 1 : 2;
  return { snapshot_id: SNAPSHOT, generation, desired, vm_id: SOURCE, kind: 'full' } as const;
}

async function want(vmId: string, desired: 'running' | 'paused', from?: 'memory'): Promise<number> {
  const generation = (generations.get(vmId) ?? 0) + 1;
  generations.set(vmId, generation);
  const origin = { type: 'snapshot', snapshot_id: SNAPSHOT, kind: 'full' } as const;
  await runner.want(vmId, generation, desired, {
    spec: { ...SMALL, ...(generation === 1 && vmId !== SOURCE && { origin }) },
    ...(from && { start_from: from }),
  });
  return generation;
}

async function go(vmId: string, desired: 'running' | 'paused', from?: 'memory'): Promise<void> {
  await runner.reported(vmId, await want(vmId, desired, from), desired);
}

/** The file that a sandbox's VMM maps. */
async function mapped(vmId: string): Promise<{ ino: number; nlink: number }> {
  const { process: vmm } = JSON.parse(await readFile(join(home, 'vms', vmId, 'vm.json'), 'utf8'));
  const { ino, nlink } = await stat(`/proc/${(vmm as { pid: number }).pid}/fd/3`);
  return { ino, nlink };
}

describe('sandboxes of one full snapshot', () => {
  it('map its memory file, each under a name of its own', async () => {
    for (const vmId of [ONE, OTHER]) await go(vmId, 'running', 'memory');
    const { ino } = await stat(join(home, 'snapshots', SNAPSHOT, 'memory'));
    // The snapshot's own, and for each sandbox what is kept and what is mapped.
    for (const vmId of [ONE, OTHER]) assert.deepEqual(await mapped(vmId), { ino, nlink: 5 });
  });

  it('keep their memory when a pause of one fails after it was saved, and the other is paused', async () => {
    await runner.arm('pause:renamed');
    await want(ONE, 'paused');
    assert.equal(await runner.died(), 'SIGKILL');
    runner = await RunnerProcess.open(home);
    assert.match(await runner.sh(ONE, CHECK), /m: OK/);
    // From here on nothing but the sandboxes has the file, and what is kept of the first is another one.
    assert.equal((await runner.snapshot(snapshot('deleted'))).status, 'deleted');
    await runner.sh(OTHER, OVERWRITE);
    await go(OTHER, 'paused');
    assert.match(await runner.sh(ONE, CHECK), /m: OK/);
    await go(OTHER, 'running', 'memory');
    for (const vmId of [ONE, OTHER]) assert.match(await runner.sh(vmId, CHECK), /m: OK/);
  });

  it('write into their own file again when no other process has it', async () => {
    const before = await mapped(OTHER);
    assert.equal(before.nlink, 2);
    await runner.sh(OTHER, OVERWRITE);
    await go(OTHER, 'paused');
    await go(OTHER, 'running', 'memory');
    assert.deepEqual(await mapped(OTHER), before);
    assert.match(await runner.sh(OTHER, CHECK), /m: OK/);
  });
});

describe('a fork of a paused sandbox', () => {
  it('maps the memory of its source, and neither sees what the other writes and saves', async () => {
    await go(ONE, 'paused');
    generations.set(LATER, 1);
    await runner.want(LATER, 1, 'paused', { spec: { ...SMALL, origin: { type: 'fork', vm_id: ONE } } });
    await runner.reported(LATER, 1, 'paused');
    for (const vmId of [ONE, LATER]) await go(vmId, 'running', 'memory');
    assert.deepEqual(await mapped(ONE), await mapped(LATER));
    for (const [writes, reads] of [
      [ONE, LATER],
      [LATER, ONE],
    ] as const) {
      await runner.sh(writes, OVERWRITE);
      await go(writes, 'paused');
      assert.match(await runner.sh(reads, CHECK), /m: OK/);
      await go(writes, 'running', 'memory');
      assert.match(await runner.sh(writes, CHECK), /m: OK/);
    }
  });
});
