/** Placements write what is still right when they come to it, whatever has happened since their hosts were chosen. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { Worker } from 'node:worker_threads';
import { LOCKS, RELEAP_LOCK_SPACE } from '@releap/database';
import { openFresh } from '@releap/testing/postgres';
import { FACTS, PATIENCE_MS, until } from '@releap/testing/world';
import { beginDrain } from '../src/compute/hosts/drain.ts';
import { createLifecycle } from '../src/compute/sandboxes/lifecycle.ts';
import { STATE_DEADLINES } from '../src/compute/sandboxes/transitions.ts';
import { allocate } from '../src/compute/scheduler/allocate.ts';
import { HostChangedError, place, type Placed } from '../src/compute/scheduler/place.ts';
import type { Need } from '../src/compute/scheduler/placement.ts';
import { restart } from '../src/compute/scheduler/restart.ts';
import { newOrg, newRunner, newSandbox, REGION } from './support/billing.ts';
import { STEP, type HeldPlacement } from './support/held-placement.ts';

const CORES = 2;
const overcommit = { cpu: 8, mem: 4, disk: 4, tier: 'spot' } as const;
const need: Need = {
  region: REGION,
  arch: 'amd64',
  requiredRunnerId: null,
  cpu: 1,
  mem_mib: 1,
  disk_mib: 512,
  gpus: 0,
  overcommitted: false,
};

const database = await openFresh();
const { projectId } = await newOrg(database);
const lifecycle = createLifecycle({ database, deadlines: STATE_DEADLINES, onMoved: () => undefined });

interface HostOf {
  runnerId: string;
  /** Dedicated sandboxes of one core each that wait for it. */
  ids: string[];
  /** Places these of them there. */
  place: (ids: string[]) => Promise<Placed>;
}

/** A host for `CORES` sandboxes. */
async function hostWith(count: number, gpus = 0): Promise<HostOf> {
  const runnerId = await newRunner(database);
  await database.pool.query('update runners set ready = true, facts = $2 where id = $1', [
    runnerId,
    { ...FACTS, cores: CORES, gpus },
  ]);
  const ids: string[] = [];
  const size = { mode: 'dedicated', millicores: 1000, memMib: 1, gpus } as const;
  for (let n = 0; n < count; n++)
    ids.push(await newSandbox(database, projectId, { ...size, status: 'pending' }));
  const options = {
    database,
    lifecycle,
    artifacts: { placed: () => Promise.reject(new Error('nothing is fetched')) },
    limits: { overcommit },
  };
  return {
    runnerId,
    ids,
    place: (some) =>
      place(
        options,
        some.map((id) => ({ id, runnerId, need: { ...need, gpus }, hasArtifact: false })),
      ),
  };
}

/** Held there; the row of the host says the same. */
async function placedOn(runnerId: string): Promise<number> {
  const { rows: wrong } = await database.pool.query('select * from wrong_host_allocations()');
  assert.deepEqual(wrong, []);
  return (await database.pool.query('select 1 from sandboxes where held and runner_id = $1', [runnerId])).rows
    .length;
}

/** Waits until a statement with this text waits for a row. */
async function untilLocked(text: string): Promise<number> {
  let pid = 0;
  await until(async () => {
    const { rows } = await database.pool.query<{ pid: number }>(
      `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and strpos(query, $1) > 0`,
      [text],
    );
    pid = rows[0]?.pid ?? 0;
    return rows.length === 1;
  });
  return pid;
}
const PLACES = 't(id uuid';
const DRAINS = 'for no key update';

it('of several servers at the same time gives a host what it has, and no more', async () => {
  const { runnerId, ids, place: put } = await hostWith(6);
  const outcomes = await Promise.allSettled(ids.map((id) => put([id])));
  const refused = outcomes.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []));
  assert.equal(refused.length, 6 - CORES);
  for (const reason of refused) assert.ok(reason instanceof HostChangedError, String(reason));
  assert.equal(await placedOn(runnerId), CORES);
});

it('is all or nothing, and leaves a sandbox alone that another server has placed', async () => {
  const { runnerId, ids, place: put } = await hostWith(4);
  await assert.rejects(put(ids.slice(0, 3)), HostChangedError);
  assert.equal(await placedOn(runnerId), 0);
  const [first = '', second = ''] = ids;
  assert.equal((await put([first])).rows.length, 1);
  assert.deepEqual(
    (await put([first, second])).rows.map(({ id }) => id),
    [second],
  );
});

it('leaves a sandbox alone that is deleted, or is being deleted, and does not wait for it', async () => {
  const { runnerId, ids, place: put } = await hostWith(3);
  const [deleted = '', leaving = '', left = ''] = ids;
  await lifecycle.apply('delete', [{ id: deleted }]);
  await database.transaction(async (client) => {
    await lifecycle.applyWithin(client, 'delete', [{ id: leaving }]);
    const { rows } = await put(ids);
    assert.deepEqual(
      rows.map(({ id }) => id),
      [left],
    );
  });
  assert.equal(await placedOn(runnerId), 1);
});

it('holds the row of its host while PostgreSQL works, and not while its server does something else', async () => {
  const { runnerId, ids, place: put } = await hostWith(1);
  const [id = ''] = ids;
  const held: HeldPlacement = {
    url: database.url,
    sandboxId: id,
    steps: new Int32Array(new SharedArrayBuffer(3 * Int32Array.BYTES_PER_ELEMENT)),
  };
  const thread = new Worker(new URL('support/held-placement.ts', import.meta.url), { workerData: held });
  try {
    await until(() => Atomics.load(held.steps, STEP.held) === 1);
    const placed = put([id]);
    placed.catch(() => undefined);
    await untilLocked('pg_advisory_xact_lock_shared');
    Atomics.store(held.steps, STEP.goOn, 1);
    Atomics.notify(held.steps, STEP.goOn);
    // This thread answers nothing from now on.
    assert.notEqual(Atomics.wait(held.steps, STEP.committed, 0, PATIENCE_MS), 'timed-out');
    assert.equal((await placed).rows.length, 1);
  } finally {
    await thread.terminate();
  }
  assert.equal(await placedOn(runnerId), 1);
});

it('sees a drain, and a drain sees it', async () => {
  const { runnerId, ids, place: put } = await hostWith(2);
  const [first = '', second = ''] = ids;
  const drain = (): Promise<unknown> =>
    beginDrain({ database, lifecycle, moves: { kick: () => undefined } }, runnerId, {
      force: true,
      move: false,
    });
  // Until its commit, a drain waits for it.
  let drained: Promise<unknown> | undefined;
  await allocate(database, async (client) => {
    await lifecycle.applyWithin(client, 'place', [{ id: first, place_on: runnerId }]);
    drained = drain();
    await untilLocked(DRAINS);
  });
  await drained;
  await lifecycle.apply('observe:running', [{ id: first }]);
  await assert.rejects(put([second]), HostChangedError);
  assert.equal(await placedOn(runnerId), 1);
});

it('is rolled back when its host is drained, forgotten or no longer ready while it waits for it', async () => {
  for (const change of [
    `draining_since = now()`,
    `forgotten_at = now()`,
    `ready = false`,
    `status = 'lost'`,
  ]) {
    const { runnerId, ids, place: put } = await hostWith(1);
    let placed: Promise<Placed> | undefined;
    await database.transaction(async (client) => {
      await client.query('select 1 from host_allocations where runner_id = $1 for update', [runnerId]);
      placed = put(ids);
      placed.catch(() => undefined);
      await untilLocked(PLACES);
      await client.query(`update runners set ${change} where id = $1`, [runnerId]);
    });
    await assert.rejects(placed ?? Promise.resolve(), HostChangedError, change);
    assert.equal(await placedOn(runnerId), 0);
  }
});

it('leaves nothing behind when its connection breaks in the middle, and is done again by another server', async () => {
  const { runnerId, ids, place: put } = await hostWith(CORES);
  let placed: Promise<Placed> | undefined;
  await database.transaction(async (client) => {
    await client.query('select 1 from host_allocations where runner_id = $1 for update', [runnerId]);
    placed = put(ids);
    placed.catch(() => undefined);
    await client.query('select pg_terminate_backend($1)', [await untilLocked(PLACES)]);
    await assert.rejects(placed);
  });
  assert.equal(await placedOn(runnerId), 0);
  assert.equal((await put(ids)).rows.length, CORES);
  assert.equal(await placedOn(runnerId), CORES);
});

it('on a host that has lost its GPUs is refused to what needs one, and to nothing else', async () => {
  const { runnerId, ids, place: put } = await hostWith(2, 1);
  const [first = '', second = ''] = ids;
  assert.equal((await put([first])).rows.length, 1);
  await database.pool.query(`update runners set facts = facts || '{"gpus": 0}' where id = $1`, [runnerId]);
  await assert.rejects(put([second]), HostChangedError);
  await database.pool.query('update sandboxes set gpu_host = 0 where id = $1', [second]);
  assert.equal((await put([second])).rows.length, 1);
});

it('does not wait for one on another host, and neither does a start there', async () => {
  const [one, other] = [await hostWith(2), await hostWith(2)];
  const [a = ''] = one.ids;
  const [b = '', c = ''] = other.ids;
  await other.place([c]);
  await database.pool.query('update sandboxes set persistent = true where id = $1', [c]);
  await lifecycle.apply('observe:running', [{ id: c, manifest_name: 'sha256:1' }]);
  await lifecycle.apply('stop', [{ id: c }]);
  await lifecycle.apply('observe:stopped', [{ id: c }]);
  await allocate(database, async (client) => {
    await lifecycle.applyWithin(client, 'place', [{ id: a, place_on: one.runnerId }]);
    assert.equal((await other.place([b])).rows.length, 1);
    const context = { database, lifecycle, limits: { overcommit } };
    const started = await restart(context, 'start', { id: c });
    assert.ok(started !== undefined && 'moved' in started, JSON.stringify(started));
  });
});

it('waits for a server of the release before, which allocates under one lock and adds up the sandboxes', async () => {
  const { runnerId, ids, place: put } = await hostWith(CORES + 1);
  const [first = '', ...others] = ids;
  let placed: Promise<Placed> | undefined;
  await database.transaction(async (client) => {
    await client.query('select pg_advisory_xact_lock($1, $2)', [RELEAP_LOCK_SPACE, LOCKS.schedule]);
    placed = put(others);
    placed.catch(() => undefined);
    await untilLocked('pg_advisory_xact_lock_shared');
    await lifecycle.applyWithin(client, 'place', [{ id: first, place_on: runnerId }]);
  });
  await assert.rejects(placed ?? Promise.resolve(), HostChangedError);
  assert.equal(await placedOn(runnerId), 1);
});
