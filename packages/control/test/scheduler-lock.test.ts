/** The scheduler never waits for a row lock with the scheduler lock: one locked sandbox must not stop all placements. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { create, startWorld, waitFor, type Answer } from '@releap/testing/world';
import { Stage } from './support/lifecycle.ts';

const world = await startWorld();
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });

it('places others while a start, a resume, a fork or a placement waits for a locked sandbox, and does those when it is free', async () => {
  const [stopped, paused, source] = [await stage.stopped(), await stage.paused(), await stage.running()];
  const holder = await world.database.pool.connect();
  let settled = 0;
  let asked: Promise<{ status: number }[]> | undefined;
  try {
    await holder.query('begin');
    await holder.query('select 1 from sandboxes where id = any($1) for update', [
      [stopped.uuid, paused.uuid, source.uuid],
    ]);
    // A request waits for 10 seconds at most: on a machine that stalls it is told to try again.
    const ask = async (path: string): Promise<Answer> => {
      for (;;) {
        const answer = await world.call('POST', path);
        if (answer.status === 503) continue;
        settled++;
        return answer;
      }
    };
    asked = Promise.all([
      ask(`/vms/${stopped.id}/start`),
      ask(`/vms/${paused.id}/resume`),
      ask(`/vms/${source.id}/fork`),
    ]);
    await Promise.all(
      Array.from({ length: 3 }, async () => {
        const other = await create(world.call, world);
        await waitFor(world.call, other.id, 'running');
      }),
    );
    assert.equal(settled, 0, 'they wait');
  } finally {
    await holder.query('rollback');
    holder.release();
  }
  assert.deepEqual(
    (await asked).map((answer) => answer.status),
    [200, 200, 200],
  );
});
