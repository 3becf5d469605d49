/** A minimal resource with a state machine, made up for this test, on a real PostgreSQL. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { openFresh } from '@releap/testing/postgres';
import { until } from '@releap/testing/world';
import { createLifecycle } from '../src/platform/lifecycle/apply.ts';
import { defineMachine, type Transition } from '../src/platform/lifecycle/machine.ts';
import { eventSql, transitionSql, type TransitionInput } from '../src/platform/lifecycle/sql.ts';

type VolumeStatus = 'creating' | 'ready' | 'failed' | 'deleted';
type VolumeEvent = 'observe:ready' | 'grow' | 'deadline' | 'delete' | 'again' | 'name';
interface Volume {
  id: string;
  status: VolumeStatus;
  desired: string;
  generation: number;
  deadline_at: Date | null;
  error: string | null;
  size: number;
  label: string | null;
}
interface VolumeChange extends TransitionInput {
  owner?: string;
  size?: number;
  label?: string;
}
type VolumeTransition = Transition<VolumeStatus, VolumeEvent, 'small' | 'large', 'ready' | 'deleted', 'grow'>;

// biome-ignore format: a table is read by its rows
const TRANSITIONS: readonly VolumeTransition[] = [
  { from: ['creating'], on: 'observe:ready', to: 'ready' },
  { from: ['ready'], on: 'grow', when: ['small'], to: 'same', wants: 'ready', effects: ['grow'] },
  { from: ['failed'], on: 'again', when: ['small'], to: 'creating', wants: 'ready' },
  { from: ['creating'], on: 'deadline', to: 'failed', wants: 'deleted', error: 'it was not made in time' },
  { from: ['creating', 'ready', 'failed'], on: 'delete', to: 'deleted', wants: 'deleted' },
  { from: ['deleted'], on: 'delete', to: 'same', note: 'idempotent' },
  { from: ['deleted'], on: 'name', to: 'same', note: 'an event that never writes' },
];

const machine = defineMachine<VolumeTransition, Volume>({
  name: 'test-volume',
  table: 'test_volumes',
  transitions: TRANSITIONS,
  conditions: {
    small: { sql: 's.size < 100', holds: (v) => v.size < 100, otherwise: 'it is as large as it may be' },
    large: { sql: 's.size >= 100', holds: (v) => v.size >= 100, otherwise: 'it is small' },
  },
  transient: ['creating'],
});
const sql = transitionSql<VolumeTransition, Volume>(machine, {
  columns: ['id', 'status', 'desired', 'generation', 'deadline_at', 'error', 'size', 'label'],
  input: { owner: 'text', size: 'integer', label: 'text' },
  guards: ['owner'],
  set: { size: (row) => (row.effects?.includes('grow') ? 's.size + t.size' : undefined) },
  always: { label: 'coalesce(t.label, s.label)' },
  alongside: (rows) =>
    rows.some((row) => row.to === 'deleted')
      ? { gone: `delete from test_mounts x using moved m where x.volume_id = m.id and m.status = 'deleted'` }
      : {},
});

const database = await openFresh();
await database.pool.query(
  `create table test_volumes (id uuid primary key, owner text not null default 'me', status text not null, desired text not null default 'ready',
     generation integer not null default 1, deadline_at timestamptz, error text, size integer not null, label text,
     updated_at timestamptz not null default now());
   create table test_mounts (volume_id uuid)`,
);
const announced: string[] = [];
const volumes = createLifecycle<VolumeTransition, Volume, VolumeChange>({
  database,
  sql,
  deadlines: { creating: 60_000 },
  onMoved: (rows) => announced.push(...rows.map((row) => row.id)),
});

async function add(status: VolumeStatus, size = 10): Promise<string> {
  const id = newUuid();
  await database.pool.query(
    `insert into test_volumes (id, status, size, deadline_at) values ($1, $2, $3, case when $2 = 'creating' then now() + interval '1 hour' end)`,
    [id, status, size],
  );
  return id;
}

describe('a state machine over a table of one’s own', () => {
  it('moves rows by its table, sets what the row says, and announces after the write', async () => {
    const [made, failed] = [await add('creating'), await add('failed')];
    const [ready] = await volumes.apply('observe:ready', [{ id: made, label: 'home' }, { id: failed }]);
    assert.deepEqual(
      [ready?.id, ready?.status, ready?.generation, ready?.deadline_at, ready?.label],
      [made, 'ready', 1, null, 'home'],
    );
    assert.deepEqual(announced.splice(0), [made], 'of what was moved alone');
    const [grown] = await volumes.apply('grow', [{ id: made, size: 5 }]);
    assert.deepEqual([grown?.status, grown?.size, grown?.generation], ['ready', 15, 2]);
    const [again] = await volumes.apply('again', [{ id: failed }]);
    assert.ok((again?.deadline_at?.getTime() ?? 0) > Date.now(), 'a transient status has a deadline');
  });

  it('changes nothing where a guard does not match', async () => {
    const id = await add('creating');
    for (const guard of [{ generation: 7 }, { owner: 'another' }, { overdue: true } as const])
      assert.deepEqual(await volumes.apply('deadline', [{ id, ...guard }]), []);
    const [late] = await volumes.apply('deadline', [{ id, generation: 1, owner: 'me' }]);
    assert.deepEqual(
      [late?.status, late?.desired, late?.error, late?.generation],
      ['failed', 'deleted', 'it was not made in time', 2],
    );
  });

  it('changes rows of other tables in the same command', async () => {
    const id = await add('ready');
    await database.pool.query('insert into test_mounts values ($1)', [id]);
    await volumes.apply('delete', [{ id }]);
    assert.equal(
      (await database.pool.query('select 1 from test_mounts where volume_id = $1', [id])).rowCount,
      0,
    );
    assert.deepEqual(await volumes.apply('delete', [{ id }]), [], 'fulfilled already');
    assert.deepEqual(await volumes.apply('name', [{ id }]), [], 'no statement at all');
  });

  it('has one winner of many concurrent events', async () => {
    const id = await add('ready');
    const events = ['delete', 'grow', 'delete', 'grow', 'delete'] as const;
    const results = await Promise.all(
      events.map((event) => volumes.apply(event, [{ id, generation: 1, size: 1 }])),
    );
    assert.equal(results.flat().length, 1);
  });

  it('leaves a locked row alone where it is told to, and moves the others', async () => {
    const [locked, open] = [await add('ready'), await add('ready')];
    await database.transaction(async (holder) => {
      await holder.query('select 1 from test_volumes where id = $1 for update', [locked]);
      const moved = await database.transaction((client) =>
        volumes.applyWithin(client, 'delete', [{ id: locked }, { id: open }], { skipLocked: true }),
      );
      assert.deepEqual(
        moved.map((row) => row.id),
        [open],
      );
    });
    assert.equal((await volumes.apply('delete', [{ id: locked }])).length, 1);
  });

  it('repeats a command that PostgreSQL ended because of a deadlock', async () => {
    const [one, two, gate] = [await add('ready'), await add('ready'), await add('ready')];
    const lock = 'select 1 from test_volumes where id = $1 for update';
    const waiting = async (count: number): Promise<void> =>
      until(async () => {
        const { rowCount } = await database.pool.query(
          `select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
        );
        return rowCount === count;
      });
    const moved = await database.transaction(async (rival) => {
      // Only the command may find the deadlock: PostgreSQL ends the one that looks for it.
      await rival.query(`set local deadlock_timeout = '1h'`);
      await rival.query(lock, [two]);
      const grown = await database.transaction(async (gatekeeper) => {
        await gatekeeper.query(lock, [gate]);
        const all = volumes.apply(
          'grow',
          [one, gate, two].map((id) => ({ id, size: 1 })),
        );
        await waiting(1);
        const locked = rival.query(lock, [one]);
        await waiting(2);
        return { all, locked };
      });
      // The gate is open, so the command waits for the rival, which waits for the command.
      await grown.locked;
      return { all: grown.all };
    });
    assert.equal((await moved.all).length, 3);
  });

  it('gives the parts of an event to statements that do other things, too', async () => {
    const events = eventSql(machine);
    const ids = [await add('creating', 10), await add('creating', 200), await add('failed', 10)];
    const { rows } = await database.pool.query<{ status: VolumeStatus }>(
      `update test_volumes v set ${events.sets('v', { 'observe:ready': 'size < 100', deadline: 'true' })}, label = 'seen'
        where id = any($1::uuid[]) returning status`,
      [ids],
    );
    assert.deepEqual(
      rows.map(({ status }) => status),
      ['ready', 'failed', 'failed'],
      'the first event that is allowed and whose condition holds; otherwise the status stays',
    );
    const { rowCount } = await database.pool.query(
      `update test_volumes v set ${events.sets('v', 'observe:ready')} where id = any($1::uuid[]) and ${events.allows('v', 'observe:ready')}`,
      [ids],
    );
    assert.equal(rowCount, 0, 'none is being created');
    assert.equal(events.allows('v', 'deadline', 'observe:ready'), `v.status in ('creating')`);
    for (const event of ['delete', 'grow', 'again', 'name'] as const)
      assert.throws(() => events.sets('v', event), /test-volume: \w+ is not one change of the status/);
  });

  it('says why an event is refused, and what is allowed', () => {
    const volume = { status: 'ready', size: 100 } as Volume;
    assert.equal(machine.decide('grow', volume), undefined);
    assert.equal(machine.refusal('grow', volume), 'it is as large as it may be');
    assert.equal(machine.refusal('grow', { ...volume, status: 'failed' }), 'it is failed, and must be ready');
    assert.equal(
      machine.refusal('delete', { ...volume, status: 'deleted' }),
      'it is deleted, and must be creating, ready or failed',
    );
  });
});
