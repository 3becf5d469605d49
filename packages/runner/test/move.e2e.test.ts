/** What a host does for a move of a sandbox: it captures one that does not run, and takes one that another host has captured. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `41111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const MOVED = { type: 'snapshot', kind: 'full', moved: true } as const;

let home: string;
let runner: TestRunner;
before(async () => {
  home = await temporaryFolder('releap-mv-');
  runner = await TestRunner.open(home);
});
after(async () => await runner.dispose());

const sandbox = (vmId: string) => {
  const found = runner.reconciler.get(vmId);
  assert.ok(found);
  return found;
};

/** What the sandbox has is gone, as its host would be: only the captured content is there. */
async function leave(vmId: string, generation: number): Promise<void> {
  runner.want(vmId, generation, 'deleted');
  await runner.reported(generation, 'deleted', { of: vmId });
  await runner.reconciler.stored([{ vm_id: vmId, generation, status: 'deleted' }]);
}

describe('a sandbox that is moved', () => {
  it('continues from its memory', async () => {
    const vmId = id(1);
    runner.want(vmId, 1, 'running');
    await runner.reported(1, 'running', { of: vmId });
    await runner.sh(vmId, `echo kept > /file; sync; echo held > /dev/shm/held; ${COUNTER}`);
    await assert.rejects(sandbox(vmId).captureResting(id(10)), /is running, and must be stopped or paused/);
    runner.want(vmId, 2, 'paused');
    await runner.reported(2, 'paused', { of: vmId });
    await sandbox(vmId).captureResting(id(10));
    await leave(vmId, 3);

    runner.want(vmId, 5, 'paused', { spec: { ...SPEC, origin: { ...MOVED, snapshot_id: id(10) } } });
    const arrived = await runner.reported(5, 'paused', { of: vmId });
    assert.match(arrived.manifest_name ?? '', /^sha256:/);
    assert.deepEqual(
      [arrived.memory, arrived.memory_blocked, arrived.error],
      [undefined, undefined, undefined],
    );
    // Its artifact is removed once the row names this host.
    await runner.machines.snapshots.remove(id(10));
    runner.want(vmId, 6, 'running', { start_from: 'memory' });
    await runner.reported(6, 'running', { of: vmId });
    assert.equal(await runner.sh(vmId, 'cat /file /dev/shm/held'), 'kept\nheld\n');
    await runner.sh(vmId, COUNTS);
    await leave(vmId, 7);
  });

  it('boots from its disk, and may be captured again', async () => {
    const vmId = id(2);
    runner.want(vmId, 1, 'running');
    await runner.reported(1, 'running', { of: vmId });
    await runner.sh(vmId, 'echo kept > /file');
    runner.want(vmId, 2, 'stopped');
    await runner.reported(2, 'stopped', { of: vmId });
    await sandbox(vmId).captureResting(id(11));
    // The move has failed: it runs where it was, and what was captured does not change.
    runner.want(vmId, 3, 'running');
    await runner.reported(3, 'running', { of: vmId });
    await runner.sh(vmId, 'echo later > /file');
    runner.want(vmId, 4, 'stopped');
    await runner.reported(4, 'stopped', { of: vmId });
    await sandbox(vmId).captureResting(id(12));
    await leave(vmId, 5);
    for (const [n, content] of [
      [11, 'kept\n'],
      [12, 'later\n'],
    ] as const) {
      const copy = id(20 + n);
      runner.want(copy, 1, 'stopped', {
        spec: { ...SPEC, origin: { ...MOVED, kind: 'disk', snapshot_id: id(n) } },
      });
      const arrived = await runner.reported(1, 'stopped', { of: copy });
      assert.match(arrived.manifest_name ?? '', /^sha256:/);
      runner.want(copy, 2, 'running');
      await runner.reported(2, 'running', { of: copy });
      assert.equal(await runner.sh(copy, 'cat /file'), content);
      await leave(copy, 3);
    }
  });

  it('is reported as failed, and leaves nothing, when its content cannot be had', async () => {
    const vmId = id(3);
    runner.want(vmId, 1, 'stopped', {
      spec: { ...SPEC, origin: { ...MOVED, kind: 'disk', snapshot_id: id(19) } },
    });
    const { error } = await runner.reported(1, 'failed', { of: vmId });
    assert.ok(error);
    await leave(vmId, 2);
    assert.equal((await readdir(join(home, 'vms'))).includes(vmId), false);
  });
});
