/** Snapshots beside each other: turns and lineage, lists, deletion while others need them, several servers. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Database } from '@releap/database';
import type { QueryConfig, QueryResult } from 'pg';
import { getSnapshot, listSnapshots } from '../src/compute/snapshots/queries.ts';
import { obedientExcept, Stage } from './support/lifecycle.ts';
import { Shots } from './support/snapshots.ts';
import { CAPTURED, caller, create, startWorld, until, waitFor } from '@releap/testing/world';

const world = await startWorld();
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
const shots = new Shots(world, stage);

describe('several snapshots of one sandbox', () => {
  it('descend from one another, are taken one after the other, and each knows its parent then', async () => {
    const vm = await shots.ephemeral();
    const first = await shots.pending(vm);
    const second = await shots.pending(vm);
    const third = await shots.pending(vm);
    assert.equal((await world.call('GET', `/jobs/${second.job_id}`)).body.status, 'queued');
    assert.deepEqual(
      [stage.runner.snapshots.has(second.id), (await shots.rowOf(second.id)).assigned_to_runner],
      [false, false],
    );
    await stage.runner.observedSnapshot(await stage.runner.snapshotAssigned(first.id), CAPTURED);
    const next = await stage.runner.snapshotAssigned(second.id);
    assert.equal(next.parent_id, first.id);
    assert.equal((await world.call('GET', `/jobs/${second.job_id}`)).body.status, 'running');
    await stage.runner.observedSnapshot(next, { status: 'failed', error: 'no' });
    assert.equal((await stage.runner.snapshotAssigned(third.id)).parent_id, first.id);
    shots.obeyAgain();
    await stage.runner.observedSnapshot(await stage.runner.snapshotAssigned(third.id), CAPTURED);
    assert.equal((await shots.wait(third.id)).parent_id, first.id);
    assert.equal((await shots.taken(vm)).parent_id, third.id);
  });

  it('one that waits for its turn can be deleted, and one that is being taken frees its turn when it is', async () => {
    const vm = await shots.ephemeral();
    const first = await shots.pending(vm);
    const second = await shots.pending(vm);
    const third = await shots.pending(vm);
    assert.equal((await shots.remove(second.id)).status, 200);
    shots.obeyAgain();
    assert.equal((await shots.remove(first.id)).status, 200);
    assert.equal((await shots.wait(third.id)).status, 'ready');
    assert.equal(
      (await world.call('GET', `/jobs/${first.job_id}`)).body.error,
      'the snapshot was deleted before it was taken',
    );
    assert.equal(stage.runner.snapshots.has(second.id), false, 'its host never heard of it');
  });

  it('asked for at the same time with one name: one of them is taken', async () => {
    const vm = await shots.ephemeral();
    const name = shots.fresh();
    const answers = await Promise.all(Array.from({ length: 6 }, () => shots.take(vm, { name })));
    assert.deepEqual(
      answers.map((one) => one.status).sort((a, b) => a - b),
      [200, 409, 409, 409, 409, 409],
    );
  });
});

describe('two servers on one database', () => {
  it('a fork and a snapshot asked of one reach the runner that is connected to the other', async () => {
    const second = await world.another();
    // Each knows the other from its next heartbeat on.
    await Promise.all([world.control.sweep(), second.sweep()]);
    const vm = await stage.running();
    const call = caller(() => second.url, world.call.key, world.call.projectId);
    const answer = await call('POST', `/vms/${vm.id}/snapshots`, { name: shots.fresh(), kind: 'full' });
    assert.equal(answer.status, 200, answer.text);
    assert.equal(
      (await call('GET', `/snapshots/${answer.body.id}?wait=ready&timeout_ms=60000`)).body.status,
      'ready',
    );
    const child = (await call('POST', `/vms/${vm.id}/fork`)).body;
    await waitFor(call, child.vm_id, 'running');
    assert.equal((await call('DELETE', `/snapshots/${answer.body.id}`)).status, 200);
    await until(async () => !(await shots.rowOf(answer.body.id)).assigned_to_runner);
    await second.close();
  });
});

describe('GET /snapshots', () => {
  it('reads nothing of them that it does not show: an environment can have a megabyte', async () => {
    const taken = await shots.taken(await shots.ephemeral());
    await world.database.pool.query(
      `insert into snapshot_env (snapshot_id, env) values ($1, jsonb_build_object('V', repeat('x', 1000000)))`,
      [taken.id],
    );
    let read = 0;
    const query = async (asked: QueryConfig): Promise<QueryResult> => {
      const result = await world.database.pool.query(asked);
      read += JSON.stringify(result.rows).length;
      return result;
    };
    const pool = { query } as unknown as Database['pool'];
    const { projectId } = world.call;
    const { snapshots } = await listSnapshots({ ...world.database, pool }, projectId, 200, null);
    assert.ok(snapshots.some(({ id }) => id === taken.id));
    assert.equal((await getSnapshot(pool, taken.id, projectId))?.id, taken.id);
    assert.ok(read < 100_000, `${read} characters`);
  });

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
    const vm = await shots.ephemeral();
    const { id } = await shots.pending(vm);
    assert.equal(
      (await world.call('GET', `/snapshots/${id}?wait=ready&timeout_ms=20`)).body.status,
      'pending',
    );
    assert.equal((await world.call('GET', `/snapshots/${id}?wait=gone`)).status, 400);
    const stranger = await world.stranger();
    assert.equal((await stranger('GET', `/snapshots/${id}`)).status, 404);
    assert.equal((await world.call('GET', '/snapshots/nonsense')).status, 404);
    shots.obeyAgain();
    await shots.remove(id);
    assert.equal((await world.call('GET', `/snapshots/${id}`)).status, 404);
  });
});

describe('DELETE /snapshots/:id', () => {
  it('success: gone at once, and its host is told until nothing is left of it', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.taken(vm);
    stage.runner.options.snapshot = () => undefined;
    assert.deepEqual((await shots.remove(id)).body, { id, deleted: true });
    const gone = await stage.runner.snapshotAssigned(id, (one) => one.desired === 'deleted');
    assert.deepEqual([gone.generation, (await shots.rowOf(id)).assigned_to_runner], [2, true]);
    stage.runner.drop();
    await until(() => stage.runner.closeCode !== undefined);
    stage.runner.snapshots.clear();
    shots.obeyAgain();
    await stage.runner.connect();
    assert.equal((await stage.runner.snapshotAssigned(id)).desired, 'deleted');
    await until(async () => !(await shots.rowOf(id)).assigned_to_runner);
    assert.equal((await shots.remove(id)).status, 404);
  });

  it('404: unknown, malformed or foreign', async () => {
    const vm = await shots.ephemeral();
    const { id } = await shots.taken(vm);
    const stranger = await world.stranger();
    for (const answer of [
      await stranger('DELETE', `/snapshots/${id}`),
      await shots.remove('nonsense'),
      await shots.remove(vm.uuid),
    ])
      assert.equal(answer.status, 404);
    assert.equal((await shots.read(id)).status, 'ready');
  });

  it('409: other snapshots descend from it', async () => {
    const vm = await shots.ephemeral();
    const one = await shots.taken(vm);
    const two = await shots.taken(vm);
    const answer = await shots.remove(one.id);
    assert.equal(answer.status, 409);
    assert.match(
      answer.body.error,
      new RegExp(`snapshot "${two.name}" descends from it: delete that one first`),
    );
    assert.equal((await shots.remove(two.id)).status, 200);
    assert.equal((await shots.remove(one.id)).status, 200);
    assert.equal((await shots.taken(vm)).parent_id, null, 'a deleted snapshot is no parent');
  });

  it('409: other snapshots descend from it, over a sandbox that was made from it', async () => {
    const one = await shots.taken(await shots.ephemeral());
    const vm = await stage.running({ persistent: false, image: { type: 'snapshot', name: one.name } });
    const two = await shots.taken(vm);
    assert.equal(two.parent_id, one.id);
    assert.equal((await shots.remove(one.id)).status, 409);
  });

  it('409: a sandbox is being made from it, until that runs', async () => {
    const one = await shots.taken(await shots.ephemeral());
    stage.runner.options.script = () => undefined;
    const vm = await create(world.call, world, { image: { type: 'snapshot', name: one.name } });
    const assignment = await stage.runner.assigned(vm.uuid);
    const answer = await shots.remove(one.id);
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, new RegExp(`sandbox "${vm.id}" is being made from it \\(assigned\\)`));
    await stage.runner.observed(assignment, { status: 'booting' });
    assert.equal((await shots.remove(one.id)).status, 409);
    await stage.runner.observed(assignment, { status: 'running', manifest_name: CAPTURED.manifest_name });
    assert.equal((await shots.remove(one.id)).status, 200);
    stage.runner.options.script = obedientExcept(stage.left);
  });

  it('a restore and a delete at the same time: the sandbox has it, or is refused', async () => {
    stage.runner.options.script = () => undefined;
    for (let round = 0; round < 6; round++) {
      stage.runner.options.script = obedientExcept(stage.left);
      const one = await shots.taken(await shots.ephemeral());
      stage.runner.options.script = () => undefined;
      const [made, gone] = await Promise.all([
        world.call('POST', '/vms', { image: { type: 'snapshot', name: one.name } }),
        shots.remove(one.id),
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
