/** A fork that was acknowledged succeeds, though its source is deleted right after. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspectMeters } from '@releap/testing/inspect';
import { silent, startWorld, until, waitFor, type Created } from '@releap/testing/world';
import { Stage } from './support/lifecycle.ts';

const world = await startWorld();
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });

const statusOf = async (vm: Created): Promise<string> =>
  (await world.call('GET', `/vms/${vm.id}`)).body.status;

/** Forks it and deletes it at once; the runner leaves both to the test. */
const forkedAndDeleted = (source: Created): Promise<Created> =>
  stage.forked(source, undefined, async () => {
    const deleted = await world.call('DELETE', `/vms/${source.id}`);
    assert.deepEqual([deleted.status, deleted.body], [200, { vm_id: source.id, status: 'deleting' }]);
  });

/** Its host has no newer assignment of it, and it is not charged. */
async function isKept(source: Created, desired: string): Promise<void> {
  assert.equal(await statusOf(source), 'deleting');
  const row = await stage.row(source);
  assert.equal(row.desired, desired);
  assert.deepEqual(
    [
      stage.runner.assignments.get(source.uuid)?.generation,
      stage.runner.assignments.get(source.uuid)?.desired,
    ],
    [row.generation, desired],
  );
  const meters = await inspectMeters(world.database, { sandbox_id: source.uuid });
  assert.ok(!meters.some((meter) => meter.closed_at === null), 'no meter runs');
}

async function isRemoved(source: Created): Promise<void> {
  await stage.runner.assigned(source.uuid, (one) => one.desired === 'deleted');
  await stage.report(source, 'deleted');
  await waitFor(world.call, source.id, 'deleted');
  assert.equal((await stage.row(source)).assigned_to_runner, false);
}

describe('DELETE of the source of a fork that its host has not taken yet', () => {
  it('running source → deleting, kept by its host until the fork is taken; the fork runs', async () => {
    const source = await stage.running();
    const child = await forkedAndDeleted(source);
    await isKept(source, 'running');
    await stage.report(child, 'booting');
    await stage.runner.assigned(source.uuid, (one) => one.desired === 'deleted');
    await stage.report(child, 'running', { manifest_name: 'sha256:1' });
    await isRemoved(source);
    assert.equal(await statusOf(child), 'running');
  });

  it('paused source → deleting, kept until the fork is paused', async () => {
    const source = await stage.paused();
    const child = await forkedAndDeleted(source);
    await isKept(source, 'paused');
    await stage.report(child, 'paused', { manifest_name: 'sha256:1' });
    await isRemoved(source);
    assert.equal(await statusOf(child), 'paused');
  });

  it('is removed from its host when the fork fails, or is deleted too', async () => {
    const [one, two] = [await stage.running(), await stage.paused()];
    await stage.report(await forkedAndDeleted(one), 'failed', { error: 'no' });
    await isRemoved(one);
    const child = await forkedAndDeleted(two);
    await world.call('DELETE', `/vms/${child.id}`);
    await isRemoved(two);
  });

  it('ends in deleted when its own time is over, though the host never reports that the fork is taken', async () => {
    for (const source of [await stage.running(), await stage.paused()]) {
      const child = await forkedAndDeleted(source);
      await stage.timeOver(source);
      assert.deepEqual(
        [(await stage.row(source)).status, (await stage.row(source)).desired],
        ['deleted', 'deleted'],
      );
      await stage.runner.assigned(source.uuid, (row) => row.desired === 'deleted');
      await stage.report(child, 'failed', { error: 'no' });
    }
  });

  it('answers every further DELETE alike, and refuses another fork', async () => {
    const source = await stage.running();
    const child = await forkedAndDeleted(source);
    assert.equal((await world.call('DELETE', `/vms/${source.id}`)).body.status, 'deleting');
    const again = await world.call('POST', `/vms/${source.id}/fork`);
    assert.equal(again.status, 409);
    assert.match(again.body.error, /it is deleting, and must be running or paused/);
    await isKept(source, 'running');
    await stage.report(child, 'booting');
    await isRemoved(source);
  });

  it('releases a source that was not deleted, too: from then on a DELETE takes effect at once', async () => {
    const source = await stage.running();
    const script = stage.runner.options.script;
    stage.runner.options.script = silent;
    const answer = await world.call('POST', `/vms/${source.id}/fork`);
    stage.runner.options.script = script;
    assert.equal(answer.status, 200);
    // As if the server had ended between the two writes: the periodic task finds it.
    await world.database.pool.query(`update sandboxes set status = 'booting' where job_id = $1`, [
      answer.body.job_id,
    ]);
    await until(async () => (await stage.row(source)).pending_fork === null);
    assert.equal(await statusOf(source), 'running');
  });

  it('holds for a DELETE that waits for the fork to be written, too', async () => {
    for (let round = 0; round < 8; round++) {
      const source = await stage.running();
      const script = stage.runner.options.script;
      stage.runner.options.script = silent;
      const [fork, deleted] = await Promise.all([
        world.call('POST', `/vms/${source.id}/fork`),
        world.call('DELETE', `/vms/${source.id}`),
      ]);
      assert.equal(deleted.status, 200);
      const { desired } = await stage.row(source);
      if (fork.status === 200) assert.equal(desired, 'running', 'it is kept');
      else assert.deepEqual([fork.status, desired], [409, 'deleted']);
      if (fork.status === 200) await world.call('DELETE', `/vms/${fork.body.vm_id}`);
      await isRemoved(source);
      stage.runner.options.script = script;
    }
  });
});
