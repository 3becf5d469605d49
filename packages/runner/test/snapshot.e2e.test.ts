import assert from 'node:assert/strict';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { Origin, SandboxSpec } from '@releap/contract';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';
import type { SnapshotAssignment } from '../src/reconcile/assignment.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `31111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const EPHEMERAL = id(1);
const PERSISTENT = id(2);

let home: string;
let runner: TestRunner;
before(async () => {
  home = await temporaryFolder('releap-sn-');
  runner = await TestRunner.open(home);
  runner.want(EPHEMERAL, 1, 'running', { spec: { ...SPEC, persistent: false } });
  runner.want(PERSISTENT, 1, 'running');
  for (const vmId of [EPHEMERAL, PERSISTENT]) await runner.reported(1, 'running', { of: vmId });
  for (const vmId of [EPHEMERAL, PERSISTENT]) {
    await sh(
      vmId,
      'mkdir -p /data; dd if=/dev/urandom of=/data/file bs=1M count=8 2> /dev/null; sha256sum /data/file > /sum',
    );
  }
});
after(async () => await runner.dispose());

const sh = async (vmId: string, script: string): Promise<string> => await runner.sh(vmId, script);
const snapshotFolder = (n: number): string => join(home, 'snapshots', id(n));

function wanted(n: number, vmId: string, more: Partial<SnapshotAssignment> = {}): SnapshotAssignment {
  return {
    snapshot_id: id(n),
    generation: 1,
    desired: 'ready',
    vm_id: vmId,
    kind: vmId === PERSISTENT ? 'full' : 'disk',
    ...more,
  };
}

async function begin(vmId: string, origin: Origin, more: Partial<SandboxSpec> = {}): Promise<void> {
  runner.want(vmId, 1, 'running', {
    start_from: origin.type === 'snapshot' && origin.kind === 'full' ? 'memory' : 'disk',
    spec: { ...SPEC, name: 'restored', ...more, origin },
  });
  await runner.reported(1, 'running', { of: vmId });
}

describe('a snapshot of the disk', () => {
  it('is what the disk was, files that were never synced too, and the sandbox continues', async () => {
    await sh(EPHEMERAL, 'echo one > /data/state');
    const first = await runner.snapshot(wanted(10, EPHEMERAL));
    assert.equal(first.status, 'ready', first.error);
    assert.equal(first.no_changes, false);
    assert.match(first.manifest_name ?? '', /^sha256:/);
    assert.ok((first.disk_bytes ?? 0) > 8 * 1024 * 1024);
    assert.equal(first.fc_version, undefined);
    await sh(EPHEMERAL, 'echo two > /data/state');
    for (const persistent of [false, true]) {
      const child = id(persistent ? 21 : 20);
      await begin(child, { type: 'snapshot', snapshot_id: id(10), kind: 'disk' }, { persistent });
      assert.match(
        await sh(child, 'sha256sum -c /sum; cat /data/state; hostname'),
        /file: OK\none\nrestored/,
      );
      await sh(child, 'echo mine > /data/state; sync');
    }
    assert.equal(await sh(EPHEMERAL, 'cat /data/state'), 'two\n');
  });

  it('knows when nothing was written since its parent, and when something was', async () => {
    const second = await runner.snapshot(wanted(11, EPHEMERAL, { parent_id: id(10) }));
    assert.equal(second.no_changes, false);
    const third = await runner.snapshot(wanted(12, EPHEMERAL, { parent_id: id(11) }));
    assert.equal(third.status, 'ready', third.error);
    assert.equal(third.no_changes, true);
    assert.equal(third.disk_bytes, 0);
    await sh(EPHEMERAL, 'chmod 600 /data/state');
    assert.equal((await runner.snapshot(wanted(13, EPHEMERAL, { parent_id: id(11) }))).no_changes, false);
    await begin(id(22), { type: 'snapshot', snapshot_id: id(12), kind: 'disk' }, { persistent: false });
    assert.match(await sh(id(22), 'sha256sum -c /sum; cat /data/state'), /file: OK\ntwo/);
  });

  it('of a sandbox that was made from one extends the chain', async () => {
    const taken = await runner.snapshot(wanted(14, id(20), { parent_id: id(10) }));
    assert.equal(taken.status, 'ready', taken.error);
    await begin(id(23), { type: 'snapshot', snapshot_id: id(14), kind: 'disk' }, { persistent: false });
    assert.match(await sh(id(23), 'sha256sum -c /sum; cat /data/state'), /file: OK\nmine/);
  });
});

describe('a full snapshot', () => {
  it('is memory, processes and disk of one point in time, from which any number of sandboxes resume', async () => {
    await sh(
      PERSISTENT,
      `dd if=/dev/urandom of=/dev/shm/m bs=1M count=2 2> /dev/null; sha256sum /dev/shm/m > /dev/shm/sum
       ${COUNTER}`,
    );
    const taken = await runner.snapshot(wanted(15, PERSISTENT));
    assert.equal(taken.status, 'ready', taken.error);
    assert.equal(taken.mem_bytes, SPEC.mem_mib * 1024 * 1024);
    assert.match(taken.fc_version ?? '', /^QEMU \d/);
    assert.match(taken.cpu_marker ?? '', / (tcg|kvm)$/);
    assert.equal(taken.artifact_ref, id(15));
    await sh(PERSISTENT, 'echo later > /data/state; rm /dev/shm/m; sync');
    for (const n of [24, 25]) {
      await begin(id(n), { type: 'snapshot', snapshot_id: id(15), kind: 'full' });
      assert.match(
        await sh(id(n), 'sha256sum -c /dev/shm/sum /sum; hostname'),
        /m: OK\n.*file: OK\nrestored/,
      );
      await sh(id(n), COUNTS);
    }
    assert.equal(await sh(PERSISTENT, 'cat /data/state'), 'later\n');
    runner.want(id(25), 2, 'stopped');
    await runner.reported(2, 'stopped', { of: id(25) });
    runner.want(id(25), 3, 'running', { start_from: 'disk' });
    await runner.reported(3, 'running', { of: id(25) });
    assert.match(await sh(id(25), 'sha256sum -c /sum'), /file: OK/);
  });

  it('is taken once: one that was reported ready and is missing fails, and is never taken again', async () => {
    const before = await stat(join(snapshotFolder(15), 'memory'));
    const again = await runner.snapshot(wanted(15, PERSISTENT, { generation: 2 }));
    assert.equal(again.status, 'ready');
    assert.equal((await stat(join(snapshotFolder(15), 'memory'))).ino, before.ino);
    const gone = await runner.snapshot(wanted(16, PERSISTENT, { captured: true }));
    assert.equal(gone.status, 'failed');
    assert.match(gone.error ?? '', /no longer on this machine/);
  });
});

describe('a snapshot that cannot be taken', () => {
  it('fails with the reason, and the sandbox is as it was', async () => {
    runner.want(PERSISTENT, 2, 'paused');
    await runner.reported(2, 'paused', { of: PERSISTENT });
    const { status, error } = await runner.snapshot(wanted(17, PERSISTENT));
    assert.equal(status, 'failed');
    assert.match(error ?? '', /the sandbox is paused, and must be running/);
    assert.equal((await runner.snapshot(wanted(18, id(99)))).status, 'failed');
    runner.want(PERSISTENT, 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: PERSISTENT });
  });

  it('as the source of a sandbox: that fails with the reason', async () => {
    runner.want(id(26), 1, 'running', {
      start_from: 'memory',
      spec: { ...SPEC, origin: { type: 'snapshot', snapshot_id: id(98), kind: 'full' } },
    });
    const { error } = await runner.reported(1, 'failed', { of: id(26) });
    assert.match(error ?? '', /snapshot .* is not on this machine any more/);
  });
});

describe('snapshots that are no longer needed', () => {
  it('are removed, and sandboxes made from them keep their data', async () => {
    for (const n of [10, 11, 12, 13, 14]) {
      const { status } = await runner.snapshot(wanted(n, EPHEMERAL, { generation: 2, desired: 'deleted' }));
      assert.equal(status, 'deleted');
    }
    runner.snapshots.linked();
    runner.orphans.synced();
    for (const end = Date.now() + 120_000; (await readdir(join(home, 'snapshots'))).length > 0; ) {
      assert.ok(Date.now() < end, 'the orphan is removed');
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    for (const n of [20, 21, 24, 25]) assert.match(await sh(id(n), 'sha256sum -c /sum'), /file: OK/);
  });
});
