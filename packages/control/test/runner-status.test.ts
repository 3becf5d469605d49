/** What is stored of hosts: their connection, and whether they are ready. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { host, hosts, startWorld, until, type ScriptedRunner } from '@releap/testing/world';

const world = await startWorld();

/** Resolves when a statement with this text waits for a row. */
const waiting = (text: string): Promise<void> =>
  until(async () => {
    const { rowCount } = await world.database.pool.query(
      `select 1 from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and position($1 in query) > 0 and pid <> pg_backend_pid()`,
      [text],
    );
    return rowCount === 1;
  });
/** Locks the row of a host. @returns what unlocks it */
async function lock({ id }: ScriptedRunner): Promise<() => Promise<void>> {
  const client = await world.database.pool.connect();
  await client.query('begin');
  await client.query('select 1 from runners where id = $1 for update', [id]);
  return async () => {
    await client.query('rollback');
    client.release();
  };
}

it('a heartbeat that waits for the row of one host does not undo what another has said meanwhile', async () => {
  await using one = await world.runner();
  await using two = await world.runner();
  await until(async () => (await hosts(world)).every(({ ready }) => ready));
  const beat = async (locked: ScriptedRunner): Promise<{ isFree: boolean; end: () => Promise<void> }> => {
    const unlock = await lock(locked);
    const written = world.control.runTask('runner-heartbeat');
    await waiting('update runners r set last_seen_at');
    const { rowCount } = await world.database.pool.query(
      'select 1 from runners where id = any($1) for update skip locked',
      [[one.id, two.id]],
    );
    return { isFree: rowCount === 1, end: () => unlock().then(() => written) };
  };
  // The first row that the statement comes to: that of the other host is not locked yet.
  let other = two;
  let beating = await beat(one);
  if (!beating.isFree) {
    await beating.end();
    other = one;
    beating = await beat(two);
  }
  assert.ok(beating.isFree);
  other.heartbeat(false);
  const seq = other.report();
  // Answered after the server has received it.
  for (let n = 0; n < 10; n++) await host(world, other.id);
  await beating.end();
  await until(() => other.acked >= seq);
  assert.equal((await host(world, other.id))?.ready, false);
});

it('a host whose connection ends while its hello is stored is offline', async () => {
  await using runner = await world.runner();
  runner.drop();
  await until(async () => (await host(world, runner.id))?.status === 'offline');
  const unlock = await lock(runner);
  const connecting = runner.connect();
  await waiting('insert into runners');
  runner.drop();
  await connecting;
  // Answered after the server has seen the end of the connection.
  assert.equal((await fetch(`${world.internalUrl}/livez`)).status, 404);
  const stored = async (): Promise<{ epoch: string; status: string }> =>
    (await world.database.pool.query('select epoch, status from runners where id = $1', [runner.id])).rows[0];
  const before = await stored();
  await unlock();
  await until(async () => (await stored()).epoch !== before.epoch);
  await until(async () => (await stored()).status === 'offline');
});
