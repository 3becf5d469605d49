/** Snapshots as callers and hosts see them: a test for every row of what the service promises. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { SANDBOX_STATUSES, SnapshotCreateResponse, SnapshotRecord } from '@releap/contract';
import { Compile } from 'typebox/compile';
import { obedientExcept, Stage } from './support/lifecycle.ts';
import {
  CAPTURED,
  CAPTURED_MEMORY,
  caller,
  create,
  startWorld,
  takesSnapshots,
  until,
  waitFor,
  type Answer,
  type Created,
  type World,
} from './support/world.ts';

let world: World;
let stage: Stage;
before(async () => {
  world = await startWorld();
  stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
});
after(async () => world[Symbol.asyncDispose]());

let count = 0;
const fresh = (): string => `snap-${++count}`;
const take = (vm: Created, body: object): Promise<Answer> =>
  world.call('POST', `/vms/${vm.id}/snapshots`, body);
const read = async (id: string) => (await world.call('GET', `/snapshots/${id}`)).body;
const wait = async (id: string) =>
  (await world.call('GET', `/snapshots/${id}?wait=ready&timeout_ms=15000`)).body;
const remove = (id: string): Promise<Answer> => world.call('DELETE', `/snapshots/${id}`);
const ephemeral = (body: object = {}): Promise<Created> => stage.running({ persistent: false, ...body });

async function taken(
  vm: Created,
  body: object = {},
): Promise<{ id: string; name: string; parent_id: string | null }> {
  const answer = await take(vm, { name: fresh(), ...body });
  assert.equal(answer.status, 200, answer.text);
  const record = await wait(answer.body.id);
  assert.equal(record.status, 'ready', JSON.stringify(record));
  return record;
}

/** Asked for, and left to the test. */
async function pending(
  vm: Created,
  body: object = {},
): Promise<{ id: string; name: string; job_id: string }> {
  stage.runner.options.snapshot = () => undefined;
  const answer = await take(vm, { name: fresh(), ...body });
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}
const obeyAgain = (): void => {
  stage.runner.options.snapshot = takesSnapshots;
};

async function refused(vm: Created, body: object, message: RegExp): Promise<void> {
  const rows = async () => (await world.database.pool.query('select count(*) from snapshots')).rows[0].count;
  const before = await rows();
  const answer = await take(vm, { name: fresh(), ...body });
  assert.deepEqual([answer.status, Object.keys(answer.body)], [409, ['error']], answer.text);
  assert.match(answer.body.error, message);
  assert.equal(await rows(), before, 'nothing is written');
}

describe('POST /vms/:id/snapshots', () => {
  it('disk, the default, of a running sandbox: pending with job_id, then ready; the sandbox keeps running', async () => {
    const vm = await ephemeral();
    const name = fresh();
    stage.runner.options.snapshot = () => undefined;
    const answer = await take(vm, { name });
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

    const waiting = wait(id);
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
    obeyAgain();
  });

  it('full, of a persistent sandbox: artifact_ref, fc_version, cpu_marker, mem_bytes and runner_id are populated', async () => {
    const vm = await stage.running();
    const record = await read((await taken(vm, { kind: 'full' })).id);
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
    const vm = await ephemeral();
    for (const body of [
      {},
      { name: '' },
      { name: ' a' },
      { name: 'a\nb' },
      { name: 'x'.repeat(129) },
      { name: 'a', kind: 'half' },
    ]) {
      const answer = await take(vm, body);
      assert.equal(answer.status, 400, JSON.stringify(body));
      assert.match(answer.body.error, /name|kind/);
    }
  });

  it('404: unknown, malformed or foreign sandbox', async () => {
    const vm = await ephemeral();
    const stranger = await world.stranger();
    assert.equal((await stranger('POST', `/vms/${vm.id}/snapshots`, { name: 'a' })).status, 404);
    assert.equal((await world.call('POST', '/vms/nonsense/snapshots', { name: 'a' })).status, 404);
  });

  it('409: sandbox not running', async () => {
    const vm = await ephemeral();
    for (const status of SANDBOX_STATUSES.filter((one) => !['pending', 'running'].includes(one))) {
      await stage.force(vm, status);
      await refused(
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
    const { status, body } = await take(waits, { name: fresh() });
    assert.deepEqual([status], [409]);
    assert.match(body.error, /it is (pending, not yet placed on a host|failed), and must be running$/);
  });

  it('409: no image manifest', async () => {
    const vm = await ephemeral();
    await stage.force(vm, 'running', 'manifest_name = null');
    await refused(vm, {}, /it has no image manifest yet$/);
  });

  it('409: name exists, in this project alone, and until that one is deleted', async () => {
    const vm = await ephemeral();
    const one = await taken(vm);
    await refused(
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
    assert.equal((await remove(one.id)).status, 200);
    await taken(vm, { name: one.name });
  });

  it('409: kind=disk on a persistent sandbox', async () => {
    const vm = await stage.running();
    await refused(
      vm,
      {},
      /it is persistent, and a disk snapshot is not enough for it: take one of kind "full"$/,
    );
  });

  it('409: kind=full on a non-resumable sandbox', async () => {
    await refused(
      await ephemeral(),
      { kind: 'full' },
      /could not be resumed from a full one: it is not persistent/,
    );
    const vm = await stage.running();
    for (const [column, message] of [
      ['volume_count = 1', /it has volumes attached$/],
      ['volume_count = 0, docker_data_mib = 512', /it has a Docker data device$/],
      ['docker_data_mib = null, gpu_host = 1', /it has GPUs$/],
    ] as const) {
      await stage.force(vm, 'running', column);
      await refused(vm, { kind: 'full' }, message);
    }
  });
});

describe('a snapshot that does not succeed', () => {
  it('failed on its host: says why, its job too, the sandbox goes on, and its host removes what it has', async () => {
    const vm = await ephemeral();
    const { id, job_id } = await pending(vm);
    const assignment = await stage.runner.snapshotAssigned(id);
    await stage.runner.observedSnapshot(assignment, { status: 'failed', error: 'no space left on device' });
    assert.deepEqual((({ status, error }) => [status, error])(await read(id)), [
      'failed',
      'no space left on device',
    ]);
    assert.equal((await world.call('GET', `/jobs/${job_id}`)).body.error, 'no space left on device');
    assert.equal((await stage.row(vm)).status, 'running');
    const gone = await stage.runner.snapshotAssigned(id, (one) => one.desired === 'deleted');
    await stage.runner.observedSnapshot(gone, { status: 'deleted' });
    assert.equal((await rowOf(id)).held, false);
    obeyAgain();
    assert.deepEqual((await remove(id)).body, { id, deleted: true });
  });

  it('pending for too long: failed; what its host says later is void', async () => {
    const vm = await ephemeral();
    const { id } = await pending(vm);
    const assignment = await stage.runner.snapshotAssigned(id);
    await world.database.pool.query(`update snapshots set deadline_at = now() where id = $1`, [id]);
    assert.deepEqual((({ status, error }) => [status, error])(await wait(id)), [
      'failed',
      'it was not taken in time',
    ]);
    await stage.runner.observedSnapshot(assignment, CAPTURED);
    assert.equal((await read(id)).status, 'failed');
    obeyAgain();
  });

  it('its sandbox is deleted meanwhile: failed, and says so', async () => {
    const vm = await ephemeral();
    const { id } = await pending(vm);
    await world.call('DELETE', `/vms/${vm.id}`);
    assert.deepEqual((({ status, error }) => [status, error])(await read(id)), [
      'failed',
      'its sandbox was deleted before it was taken',
    ]);
    obeyAgain();
  });

  it('its sandbox fails meanwhile: failed, with that reason', async () => {
    const vm = await ephemeral();
    const { id } = await pending(vm);
    await stage.report(vm, 'failed', { error: 'the VMM died of SIGKILL' });
    assert.deepEqual(
      (await wait(id)).error,
      'its sandbox failed before it was taken: the VMM died of SIGKILL',
    );
    obeyAgain();
  });

  it('its host loses it later: failed, and says so', async () => {
    const vm = await ephemeral();
    const { id } = await taken(vm);
    await stage.runner.observedSnapshot({ snapshot_id: id, generation: 1 }, { status: 'deleted' });
    assert.deepEqual((({ status, error }) => [status, error])(await read(id)), [
      'failed',
      'its host no longer has it',
    ]);
  });

  it('its host is away: it stays pending, and is asked for again when the host is back', async () => {
    const vm = await ephemeral();
    const { id } = await pending(vm);
    await stage.runner.snapshotAssigned(id);
    stage.runner.drop();
    await until(() => stage.runner.closeCode !== undefined);
    assert.equal((await read(id)).status, 'pending');
    stage.runner.snapshots.clear();
    obeyAgain();
    await stage.runner.connect();
    assert.equal((await wait(id)).status, 'ready');
  });

  it('takes no answer of another host or generation', async () => {
    const vm = await ephemeral();
    const { id } = await pending(vm);
    await stage.runner.snapshotAssigned(id);
    const other = await world.runner({ region: 'here' });
    await other.observedSnapshot({ snapshot_id: id, generation: 1 }, CAPTURED);
    await stage.runner.observedSnapshot({ snapshot_id: id, generation: 2 }, CAPTURED);
    assert.equal((await read(id)).status, 'pending');
    obeyAgain();
    await stage.runner.observedSnapshot({ snapshot_id: id, generation: 1 }, CAPTURED);
    assert.equal((await read(id)).status, 'ready');
    await other[Symbol.asyncDispose]();
  });
});

const rowOf = async (id: string) =>
  (
    await world.database.pool.query('select held, status, desired, parent_id from snapshots where id = $1', [
      id,
    ])
  ).rows[0];

describe('several snapshots of one sandbox', () => {
  it('descend from one another, are taken one after the other, and each knows its parent then', async () => {
    const vm = await ephemeral();
    const first = await pending(vm);
    const second = await pending(vm);
    const third = await pending(vm);
    assert.equal((await world.call('GET', `/jobs/${second.job_id}`)).body.status, 'queued');
    assert.deepEqual([stage.runner.snapshots.has(second.id), (await rowOf(second.id)).held], [false, false]);
    await stage.runner.observedSnapshot(await stage.runner.snapshotAssigned(first.id), CAPTURED);
    const next = await stage.runner.snapshotAssigned(second.id);
    assert.equal(next.parent_id, first.id);
    assert.equal((await world.call('GET', `/jobs/${second.job_id}`)).body.status, 'running');
    await stage.runner.observedSnapshot(next, { status: 'failed', error: 'no' });
    assert.equal((await stage.runner.snapshotAssigned(third.id)).parent_id, first.id);
    obeyAgain();
    await stage.runner.observedSnapshot(await stage.runner.snapshotAssigned(third.id), CAPTURED);
    assert.equal((await wait(third.id)).parent_id, first.id);
    assert.equal((await taken(vm)).parent_id, third.id);
  });

  it('one that waits for its turn can be deleted, and one that is being taken makes way when it is', async () => {
    const vm = await ephemeral();
    const first = await pending(vm);
    const second = await pending(vm);
    const third = await pending(vm);
    assert.equal((await remove(second.id)).status, 200);
    obeyAgain();
    assert.equal((await remove(first.id)).status, 200);
    assert.equal((await wait(third.id)).status, 'ready');
    assert.equal(
      (await world.call('GET', `/jobs/${first.job_id}`)).body.error,
      'the snapshot was deleted before it was taken',
    );
    assert.equal(stage.runner.snapshots.has(second.id), false, 'its host never heard of it');
  });

  it('asked for at the same time with one name: one of them is taken', async () => {
    const vm = await ephemeral();
    const name = fresh();
    const answers = await Promise.all(Array.from({ length: 6 }, () => take(vm, { name })));
    assert.deepEqual(
      answers.map((one) => one.status).sort((a, b) => a - b),
      [200, 409, 409, 409, 409, 409],
    );
  });
});

describe('two servers on one database', () => {
  it('a fork and a snapshot asked of one reach the runner that is connected to the other', async () => {
    const second = await world.another();
    // Each knows of the other from its next beat on.
    await Promise.all([world.control.sweep(), second.sweep()]);
    const vm = await stage.running();
    const call = caller(() => second.url, world.call.key, world.call.projectId);
    const answer = await call('POST', `/vms/${vm.id}/snapshots`, { name: fresh(), kind: 'full' });
    assert.equal(answer.status, 200, answer.text);
    assert.equal(
      (await call('GET', `/snapshots/${answer.body.id}?wait=ready&timeout_ms=15000`)).body.status,
      'ready',
    );
    const child = (await call('POST', `/vms/${vm.id}/fork`)).body;
    await waitFor(call, child.vm_id, 'running');
    assert.equal((await call('DELETE', `/snapshots/${answer.body.id}`)).status, 200);
    await until(async () => !(await rowOf(answer.body.id)).held);
    await second.close();
  });
});

describe('GET /snapshots', () => {
  it('lists newest first, in pages, of this project alone', async () => {
    const stranger = await world.stranger();
    const theirs = await stranger('POST', '/vms', { image: 'busybox' });
    await waitFor(stranger, theirs.body.vm_id, 'running');
    const names = ['a', 'b', 'c'];
    for (const name of names)
      assert.equal((await stranger('POST', `/vms/${theirs.body.vm_id}/snapshots`, { name })).status, 200);
    const first = (await stranger('GET', '/snapshots?limit=2')).body;
    const second = (await stranger('GET', `/snapshots?limit=2&cursor=${first.next_cursor}`)).body;
    assert.deepEqual(
      [...first.snapshots, ...second.snapshots].map((one: { name: string }) => one.name),
      ['c', 'b', 'a'],
    );
    assert.equal(second.next_cursor, null);
    assert.equal((await stranger('GET', '/snapshots?cursor=x')).status, 400);
    assert.ok(!JSON.stringify((await world.call('GET', '/snapshots')).body).includes(theirs.body.vm_id));
  });

  it('one: 404 for what is unknown, malformed, foreign or deleted; a wait ends with its time', async () => {
    const vm = await ephemeral();
    const { id } = await pending(vm);
    assert.equal(
      (await world.call('GET', `/snapshots/${id}?wait=ready&timeout_ms=20`)).body.status,
      'pending',
    );
    assert.equal((await world.call('GET', `/snapshots/${id}?wait=gone`)).status, 400);
    const stranger = await world.stranger();
    assert.equal((await stranger('GET', `/snapshots/${id}`)).status, 404);
    assert.equal((await world.call('GET', '/snapshots/nonsense')).status, 404);
    obeyAgain();
    await remove(id);
    assert.equal((await world.call('GET', `/snapshots/${id}`)).status, 404);
  });
});

describe('DELETE /snapshots/:id', () => {
  it('success: gone at once, and its host is told until nothing is left of it', async () => {
    const vm = await ephemeral();
    const { id } = await taken(vm);
    stage.runner.options.snapshot = () => undefined;
    assert.deepEqual((await remove(id)).body, { id, deleted: true });
    const gone = await stage.runner.snapshotAssigned(id, (one) => one.desired === 'deleted');
    assert.deepEqual([gone.generation, (await rowOf(id)).held], [2, true]);
    stage.runner.drop();
    await until(() => stage.runner.closeCode !== undefined);
    stage.runner.snapshots.clear();
    obeyAgain();
    await stage.runner.connect();
    assert.equal((await stage.runner.snapshotAssigned(id)).desired, 'deleted');
    await until(async () => !(await rowOf(id)).held);
    assert.equal((await remove(id)).status, 404);
  });

  it('404: unknown, malformed or foreign', async () => {
    const vm = await ephemeral();
    const { id } = await taken(vm);
    const stranger = await world.stranger();
    for (const answer of [
      await stranger('DELETE', `/snapshots/${id}`),
      await remove('nonsense'),
      await remove(vm.uuid),
    ])
      assert.equal(answer.status, 404);
    assert.equal((await read(id)).status, 'ready');
  });

  it('409: other snapshots descend from it', async () => {
    const vm = await ephemeral();
    const one = await taken(vm);
    const two = await taken(vm);
    const answer = await remove(one.id);
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, new RegExp(`snapshot "${two.name}" descends from it: delete that first`));
    assert.equal((await remove(two.id)).status, 200);
    assert.equal((await remove(one.id)).status, 200);
    assert.equal((await taken(vm)).parent_id, null, 'what is deleted is nobody’s parent');
  });

  it('409: other snapshots descend from it, over a sandbox that was made from it', async () => {
    const one = await taken(await ephemeral());
    const vm = await stage.running({ persistent: false, image: { type: 'snapshot', name: one.name } });
    const two = await taken(vm);
    assert.equal(two.parent_id, one.id);
    assert.equal((await remove(one.id)).status, 409);
  });

  it('409: a sandbox is being made from it, until that runs', async () => {
    const one = await taken(await ephemeral());
    stage.runner.options.script = () => undefined;
    const vm = await create(world.call, world, { image: { type: 'snapshot', name: one.name } });
    const assignment = await stage.runner.assigned(vm.uuid);
    const answer = await remove(one.id);
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, new RegExp(`sandbox "${vm.id}" is being made from it \\(assigned\\)`));
    await stage.runner.observed(assignment, { status: 'booting' });
    assert.equal((await remove(one.id)).status, 409);
    await stage.runner.observed(assignment, { status: 'running', manifest_name: CAPTURED.manifest_name });
    assert.equal((await remove(one.id)).status, 200);
    stage.runner.options.script = obedientExcept(stage.left);
  });

  it('a restore and a delete at the same time: the sandbox has it, or is refused', async () => {
    stage.runner.options.script = () => undefined;
    for (let round = 0; round < 6; round++) {
      stage.runner.options.script = obedientExcept(stage.left);
      const one = await taken(await ephemeral());
      stage.runner.options.script = () => undefined;
      const [made, gone] = await Promise.all([
        world.call('POST', '/vms', { image: { type: 'snapshot', name: one.name } }),
        remove(one.id),
      ]);
      assert.deepEqual(
        [made.status, gone.status].sort((a, b) => a - b),
        made.status === 200 ? [200, 409] : [200, 404],
      );
      if (made.status === 200) await world.call('DELETE', `/vms/${made.body.vm_id}`);
    }
    stage.runner.options.script = obedientExcept(stage.left);
  });
});
