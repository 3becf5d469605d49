/** Snapshots as clients and hosts see them: a test for every row of the specification. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SANDBOX_STATUSES, SnapshotCreateResponse, SnapshotRecord } from '@releap/contract';
import { Compile } from 'typebox/compile';
import { Stage } from './support/lifecycle.ts';
import { Shots } from './support/snapshots.ts';
import { CAPTURED, CAPTURED_MEMORY, startWorld, until, waitFor } from '@releap/testing/world';

const world = await startWorld();
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
const shots = new Shots(world, stage);

describe('POST /vms/:id/snapshots', () => {
  it('disk, the default, of a running sandbox: pending with job_id, then ready; the sandbox keeps running', async () => {
    const vm = await shots.ephemeral();
    const name = shots.fresh();
    stage.runner.options.snapshot = () => undefined;
    const answer = await shots.take(vm, { name });
    assert.equal(answer.status, 200, answer.text);
    assert.ok(Compile(SnapshotCreateResponse).Check(answer.body));
    const { id, job_id, ...rest } = answer.body;
    assert.deepEqual(
      [
        rest.name,
        rest.kind,
        rest.status,
        rest.error,
        rest.no_changes,
        rest.parent_id,
        rest.sandbox_id,
        rest.region,
      ],
      [name, 'disk', 'pending', null, false, null, vm.id, 'here'],
    );
    const job = async () => (await world.call('GET', `/jobs/${job_id}`)).body;
    assert.deepEqual([(await job()).kind, (await job()).status], ['snapshot.create', 'running']);
    const assignment = await stage.runner.snapshotAssigned(id);
    assert.deepEqual(assignment, {
      snapshot_id: id,
      generation: 1,
      desired: 'ready',
      vm_id: vm.uuid,
      kind: 'disk',
    });

    const waiting = shots.wait(id);
    await stage.runner.observedSnapshot(assignment, { ...CAPTURED, no_changes: true });
    const record = await waiting;
    assert.ok(Compile(SnapshotRecord).Check(record));
    assert.deepEqual(
      [
        record.status,
        record.no_changes,
        record.manifest_name,
        record.disk_bytes,
        record.artifact_ref,
        record.runner_id,
      ],
      ['ready', true, CAPTURED.manifest_name, 4096, undefined, undefined],
    );
    assert.equal((await job()).status, 'done');
    assert.equal((await stage.row(vm)).status, 'running');
    shots.obeyAgain();
  });

  it('full, of a persistent sandbox: artifact_ref, fc_version, cpu_marker, mem_bytes and runner_id are populated', async () => {
    const vm = await stage.running();
    const record = await shots.read((await shots.taken(vm, { kind: 'full' })).id);
    assert.deepEqual(
      [
        record.kind,
        record.artifact_ref,
        record.fc_version,
        record.cpu_marker,
        record.mem_bytes,
        record.runner_id,
      ],
      [
        'full',
        CAPTURED.artifact_ref,
        CAPTURED_MEMORY.fc_version,
        'max tcg',
        CAPTURED_MEMORY.mem_bytes,
        stage.runner.id,
      ],
    );
  });

  it('400: no name, a name that cannot be shown, another kind', async () => {
    const vm = await shots.ephemeral();
    for (const body of [
      {},
      { name: '' },
      { name: ' a' },
      { name: 'a\nb' },
      { name: 'x'.repeat(129) },
      { name: 'a', kind: 'half' },
    ]) {
      const answer = await shots.take(vm, body);
      assert.equal(answer.status, 400, JSON.stringify(body));
      assert.match(answer.body.error, /name|kind/);
    }
  });

  it('404: unknown, malformed or foreign sandbox', async () => {
    const vm = await shots.ephemeral();
    const stranger = await world.stranger();
    assert.equal((await stranger('POST', `/vms/${vm.id}/snapshots`, { name: 'a' })).status, 404);
    assert.equal((await world.call('POST', '/vms/nonsense/snapshots', { name: 'a' })).status, 404);
  });

  it('409: sandbox not running', async () => {
    const vm = await shots.ephemeral();
    for (const status of SANDBOX_STATUSES.filter((one) => !['pending', 'running'].includes(one))) {
      await stage.force(vm, status);
      await shots.refused(
        vm,
        {},
        new RegExp(
          `no disk snapshot can be taken of sandbox "${vm.id}": it is ${status}, and must be running$`,
        ),
      );
    }
  });

  it('409: not yet placed on a host', async () => {
    const answer = await world.call('POST', '/vms', {
      image: 'busybox',
      mem_mib: 60_000,
      mode: 'dedicated',
      cpu: 16,
      cpu_arch: 'arm64',
    });
    const waits = { id: answer.body.vm_id, uuid: '', token: '', jobId: '' };
    const { status, body } = await shots.take(waits, { name: shots.fresh() });
    assert.deepEqual([status], [409]);
    assert.match(body.error, /it is (pending and not yet placed on a host|failed), and must be running$/);
  });

  it('409: no image manifest', async () => {
    const vm = await shots.ephemeral();
    await stage.force(vm, 'running', 'manifest_name = null');
    await shots.refused(vm, {}, /it has no image manifest yet$/);
  });

  it('409: name exists, in this project alone, and until that one is deleted', async () => {
    const vm = await shots.ephemeral();
    const one = await shots.taken(vm);
    await shots.refused(
      vm,
      { name: one.name },
      new RegExp(`a snapshot named "${one.name}" exists in this project`),
    );
    const stranger = await world.stranger();
    const theirs = await stranger('POST', '/vms', { image: 'busybox' });
    await waitFor(stranger, theirs.body.vm_id, 'running');
    assert.equal(
      (await stranger('POST', `/vms/${theirs.body.vm_id}/snapshots`, { name: one.name })).status,
      200,
    );
    assert.equal((await shots.remove(one.id)).status, 200);
    await shots.taken(vm, { name: one.name });
  });

  it('409: kind=disk on a persistent sandbox', async () => {
    const vm = await stage.running();
    await shots.refused(vm, {}, /a persistent sandbox needs a snapshot of kind "full"$/);
  });

  it('409: kind=full on a non-resumable sandbox', async () => {
    await shots.refused(
      await shots.ephemeral(),
      { kind: 'full' },
      /a full snapshot of it could not be resumed: it is not persistent/,
    );
    const vm = await stage.running();
    for (const [column, message] of [
      ['volume_count = 1', /it has volumes attached$/],
      ['volume_count = 0, docker_data_mib = 512', /it has a Docker data device$/],
      ['docker_data_mib = null, gpu_host = 1', /it has GPUs$/],
    ] as const) {
      await stage.force(vm, 'running', column);
      await shots.refused(vm, { kind: 'full' }, message);
    }
  });
});

describe('a snapshot that does not succeed', () => {
  it('failed on its host: says why, its job too, the sandbox continues, and its host removes what it has', async () => {
    const vm = await shots.ephemeral();
    const { id, job_id } = await shots.pending(vm);
    const assignment = await stage.runner.snapshotAssigned(id);
    await stage.runner.observedSnapshot(assignment, { status: 'failed', error: 'no space left on device' });
    assert.deepEqual((({ status, error }) => [status, error])(await shots.read(id)), [
      'failed',
      'no space left on device',
    ]);
    assert.equal((await world.call('GET', `/jobs/${job_id}`)).body.error, 'no space left on device');
    assert.equal((await stage.row(vm)).status, 'running');
    const gone = await stage.runner.snapshotAssigned(id, (one) => one.desired === 'deleted');
    await stage.runner.observedSnapshot(gone, { status: 'deleted' });
    assert.equal((await shots.rowOf(id)).assigned_to_runner, false);
    shots.obeyAgain();
    assert.deepEqual((await shots.remove(id)).body, { id, deleted: true });
  });

  it('pending for too long: failed; what its host says later is void', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.pending(vm);
    const assignment = await stage.runner.snapshotAssigned(id);
    await world.database.pool.query(`update snapshots set deadline_at = now() where id = $1`, [id]);
    assert.deepEqual((({ status, error }) => [status, error])(await shots.wait(id)), [
      'failed',
      'it was not taken in time',
    ]);
    await stage.runner.observedSnapshot(assignment, CAPTURED);
    assert.equal((await shots.read(id)).status, 'failed');
    shots.obeyAgain();
  });

  it('its sandbox is deleted meanwhile: failed, and says so', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.pending(vm);
    await world.call('DELETE', `/vms/${vm.id}`);
    assert.deepEqual((({ status, error }) => [status, error])(await shots.read(id)), [
      'failed',
      'its sandbox was deleted before it was taken',
    ]);
    shots.obeyAgain();
  });

  it('its sandbox fails meanwhile: failed, with that reason', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.pending(vm);
    await stage.report(vm, 'failed', { error: 'the VMM died of SIGKILL' });
    assert.deepEqual(
      (await shots.wait(id)).error,
      'its sandbox failed before it was taken: the VMM died of SIGKILL',
    );
    shots.obeyAgain();
  });

  it('its host loses it later: failed, and says so', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.taken(vm);
    await stage.runner.observedSnapshot({ snapshot_id: id, generation: 1 }, { status: 'deleted' });
    assert.deepEqual((({ status, error }) => [status, error])(await shots.read(id)), [
      'failed',
      'its host no longer has it',
    ]);
  });

  it('its host is away: it stays pending, and is asked for again when the host is back', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.pending(vm);
    await stage.runner.snapshotAssigned(id);
    stage.runner.drop();
    await until(() => stage.runner.closeCode !== undefined);
    assert.equal((await shots.read(id)).status, 'pending');
    stage.runner.snapshots.clear();
    shots.obeyAgain();
    await stage.runner.connect();
    assert.equal((await shots.wait(id)).status, 'ready');
  });

  it('takes no answer of another host or generation', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.pending(vm);
    await stage.runner.snapshotAssigned(id);
    const other = await world.runner({ region: 'here' });
    await other.observedSnapshot({ snapshot_id: id, generation: 1 }, CAPTURED);
    await stage.runner.observedSnapshot({ snapshot_id: id, generation: 2 }, CAPTURED);
    assert.equal((await shots.read(id)).status, 'pending');
    shots.obeyAgain();
    await stage.runner.observedSnapshot({ snapshot_id: id, generation: 1 }, CAPTURED);
    assert.equal((await shots.read(id)).status, 'ready');
    await other[Symbol.asyncDispose]();
  });
});
