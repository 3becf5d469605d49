import assert from 'node:assert/strict';
import { readdir, rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { run } from '../src/process/index.ts';
import { eventually } from '@releap/testing/eventually';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { vmFacts } from './support/runner-process.ts';
import type { VmFacts } from './support/runner-process.ts';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import type { Assignment, SnapshotObservation } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `71111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const SOURCE = id(1);
const EPHEMERAL = id(2);
const MEM_MIB = 256;
/** A host keeps 256 MiB free; one full snapshot and the few writes of two sandboxes come on top. */
const HOME_MIB = MEM_MIB + 420;

let home: string;
let runner: TestRunner;
const first = new Map<string, VmFacts>();
let last = 10;
before(async () => {
  home = await temporaryFolder('releap-df-');
  await run('mount', ['-t', 'tmpfs', '-o', `size=${HOME_MIB}m`, 'tmpfs', home]);
  runner = await TestRunner.open(home);
  runner.spec = { ...SPEC, vcpus: 1, mem_mib: MEM_MIB, scratch_mib: 64, ports: [] };
  for (const vmId of [SOURCE, EPHEMERAL]) {
    runner.want(vmId, 1, 'running', { spec: { ...runner.spec, persistent: vmId === SOURCE } });
    await runner.reported(1, 'running', { of: vmId });
    await runner.sh(vmId, 'head -c 1000000 /dev/urandom > /file; sha256sum /file > /dev/shm/sum; sync');
    first.set(vmId, await vmFacts(home, vmId));
  }
});
after(async () => {
  await runner?.dispose().catch(() => undefined);
  await run('umount', [home]);
  await rm(home, { recursive: true });
});

/** Until it is disposed. */
async function fill(leaveMib: number): Promise<AsyncDisposable> {
  const ballast = join(home, 'ballast');
  await eventually('a disk that is full', async () => {
    const { bavail, bsize } = await statfs(home);
    // Other processes may take some of the space meanwhile.
    await run('fallocate', ['-l', String(bavail * bsize - leaveMib * 1024 * 1024), ballast]);
    return true;
  });
  return { [Symbol.asyncDispose]: async () => await rm(ballast) };
}

async function snapshot(vmId: string): Promise<SnapshotObservation> {
  last += 1;
  const kind = vmId === SOURCE ? 'full' : 'disk';
  return await runner.snapshot({ snapshot_id: id(last), generation: 1, desired: 'ready', vm_id: vmId, kind });
}

function fork(): string {
  last += 1;
  const more: Partial<Assignment> = {
    start_from: 'memory',
    spec: { ...runner.spec, name: 'child', origin: { type: 'fork', vm_id: SOURCE } },
  };
  runner.want(id(last), 1, 'running', more);
  return id(last);
}

async function continues(): Promise<void> {
  for (const vmId of [SOURCE, EPHEMERAL]) {
    await runner.reconciler.get(vmId)?.idle();
    assert.match(await runner.sh(vmId, 'sha256sum -c /dev/shm/sum'), /OK/);
    assert.deepEqual(await vmFacts(home, vmId), first.get(vmId));
  }
  assert.deepEqual((await readdir(join(home, 'vms'))).sort(), [SOURCE, EPHEMERAL]);
}

describe('on a host whose disk is full', () => {
  for (const leaveMib of [0, 1, 24]) {
    it(`with ${leaveMib} MiB free, forks and snapshots fail and say so, leave nothing, and sources continue`, async () => {
      {
        await using _ballast = await fill(leaveMib);
        const child = fork();
        assert.match((await runner.reported(1, 'failed', { of: child })).error ?? '', /disk.* is full/);
        await runner.reconciler.get(child)?.idle();
        const full = await snapshot(SOURCE);
        assert.match(full.error ?? full.status, /disk.* is full/);
        if (leaveMib === 0) {
          const disk = await snapshot(EPHEMERAL);
          assert.match(disk.error ?? disk.status, /disk.* is full/);
        }
        assert.deepEqual(await readdir(join(home, 'snapshots')), []);
        // Without any space a guest blocks on ENOSPC at its first write.
        if (leaveMib > 1) await continues();
      }
      await continues();
    });
  }

  it('all of them work again as soon as there is space', async () => {
    const child = fork();
    await runner.reported(1, 'running', { of: child });
    assert.match(await runner.sh(child, 'sha256sum -c /dev/shm/sum'), /OK/);
    runner.want(child, 2, 'deleted');
    await runner.reported(2, 'deleted', { of: child });
    for (const vmId of [SOURCE, EPHEMERAL]) {
      const { status, error } = await snapshot(vmId);
      assert.equal(status, 'ready', error);
    }
    assert.equal((await readdir(join(home, 'snapshots'))).length, 2);
    await continues();
  });
});
