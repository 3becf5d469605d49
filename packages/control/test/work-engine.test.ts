/**
 * "each piece ends exactly once, none is lost, at most one holder writes, no organization starves": workers that die, stall, have wrong
 * clocks and repeat themselves, on one table.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { queryAll } from '@releap/database';
import { openFresh } from '@releap/testing/postgres';
import { propertyRuns } from '@releap/testing/repetitions';
import { until } from '@releap/testing/world';
import * as fc from 'fast-check';
import { InFlight } from '../src/platform/work/in-flight.ts';
import { createWorkLoop } from '../src/platform/work/work-loop.ts';
import { WorkTable } from '../src/platform/work/work-table.ts';

interface Claim {
  batch: number;
  id: number;
  attempt: number;
}

const PIECES = new WorkTable<Claim>({
  name: 'test-pieces',
  table: 'test_pieces',
  key: { batch: 'integer', id: 'integer' },
  fence: { attempt: 'integer' },
  attempt: 'attempt',
  claimed: `w.status = 'running'`,
  waiting: `status = 'pending', lease_until = null`,
  queue: {
    due: `w.status = 'pending' and w.run_after <= now()`,
    order: 'w.queued_at, w.id',
    organization: 'w.org',
  },
  backlog: { quotas: ['pending_invocations', 'cores'], recount: '2 seconds' },
});
/** The same, with renewals that leave fresh leases alone. */
const FRESH = new WorkTable<Claim>({
  name: 'test-fresh',
  table: 'test_pieces',
  key: { batch: 'integer', id: 'integer' },
  fence: { attempt: 'integer' },
  claimed: `w.status = 'running'`,
  freshShare: 0.7,
});
/** $1 milliseconds, $2 most */
const CLAIM = PIECES.claiming<Claim & { org: string }>('claim', {
  pick: PIECES.turns('$2::integer'),
  set: `status = 'running'`,
  returning: 'w.batch, w.id, w.attempt, w.org',
});
const FINISH = PIECES.changing<{ id: number }>('finish', {
  set: `status = 'done', lease_until = null`,
  returning: 'w.batch, w.id, w.attempt',
  rest: ` insert into test_ends (batch, id, attempt) select batch, id, attempt from changed returning id`,
});
const REMOVE = PIECES.changing<{ id: number }>('remove', { returning: 'w.id' });

let batches = 0;
const database = await openFresh();
await database.pool.query(`
  create table test_pieces (
    batch integer, id integer, org text not null, status text not null default 'pending', attempt integer not null default 0,
    lease_until timestamptz, run_after timestamptz not null default now(), queued_at timestamptz not null default clock_timestamp(),
    primary key (batch, id));
  create table test_ends (batch integer, id integer, attempt integer)`);

/** Adds so many pieces of each organization, one organization after another. @returns the batch */
async function add(counts: Record<string, number>): Promise<number> {
  const batch = ++batches;
  let id = 0;
  await database.pool.query('truncate test_pieces, test_ends');
  for (const [org, count] of Object.entries(counts)) {
    await database.pool.query(
      'insert into test_pieces (batch, id, org) select $1, $2 + n, $3 from generate_series(1, $4::integer) n',
      [batch, id, org, count],
    );
    id += count;
  }
  return batch;
}
const claim = (most = 1, ms = 60_000): Promise<(Claim & { org: string })[]> =>
  queryAll(database.pool, CLAIM, [ms, most]);
const finish = async (claims: readonly Claim[]): Promise<number[]> =>
  (await queryAll(database.pool, FINISH, PIECES.values(claims))).map(({ id }) => id);
/** As if its holder had been silent for longer than its lease. */
const expire = (one: Claim): Promise<unknown> =>
  database.pool.query(
    `update test_pieces set lease_until = now() - interval '1 second'
      where batch = $1 and id = $2 and attempt = $3 and status = 'running'`,
    [one.batch, one.id, one.attempt],
  );
const states = async (): Promise<{ id: number; status: string; attempt: number }[]> =>
  (
    await database.pool.query<{ id: number; status: string; attempt: number }>(
      'select id, status, attempt from test_pieces order by id',
    )
  ).rows;

describe('a piece of work', () => {
  it('is claimed by one of those that ask at the same time', async () => {
    await add({ a: 20 });
    const claimed = (await Promise.all(Array.from({ length: 8 }, () => claim(5)))).flat();
    assert.equal(new Set(claimed.map(({ id }) => id)).size, claimed.length);
    assert.deepEqual(await claim(20 - claimed.length).then((rest) => rest.length), 20 - claimed.length);
    assert.deepEqual(await claim(), []);
  });

  it('is not renewed, given back, ended or removed by an attempt that another one has replaced', async () => {
    await add({ a: 1 });
    const [old] = await claim();
    assert.ok(old);
    await expire(old);
    assert.equal(await PIECES.requeue(database.pool, 5), 1);
    const [newer] = await claim();
    assert.ok(newer);
    assert.deepEqual([old.attempt, newer.attempt], [1, 2]);
    assert.deepEqual(await PIECES.renew(database.pool, [old], 60_000), new Set());
    await PIECES.giveBack(database.pool, [old]);
    assert.deepEqual(await finish([old]), []);
    assert.deepEqual(await queryAll(database.pool, REMOVE, PIECES.values([old])), []);
    assert.deepEqual(await states(), [{ id: 1, status: 'running', attempt: 2 }]);
    assert.deepEqual(await PIECES.renew(database.pool, [old, newer], 60_000), new Set([PIECES.keyOf(newer)]));
    assert.deepEqual(await finish([newer, newer]), [1]);
    assert.deepEqual(await finish([newer]), [], 'a repetition changes nothing');
  });

  it('is still of its holder after the deadline, as long as no other has claimed it', async () => {
    await add({ a: 1 });
    const [one] = await claim();
    assert.ok(one);
    await expire(one);
    assert.deepEqual(await PIECES.renew(database.pool, [one], 60_000), new Set([PIECES.keyOf(one)]));
    assert.equal(await PIECES.requeue(database.pool, 5), 0);
  });

  it('is not written by a renewal that would change little, where the table says so', async () => {
    await add({ a: 3 });
    const [fresh, old, lost] = await claim(3, 3_600_000);
    assert.ok(fresh && old && lost);
    await database.pool.query(
      `update test_pieces set lease_until = now() + interval '30 minutes' where batch = $1 and id = $2`,
      [old.batch, old.id],
    );
    const versions = async (): Promise<string[]> =>
      (
        await database.pool.query<{ v: string }>('select xmin::text as v from test_pieces order by id')
      ).rows.map(({ v }) => v);
    const before = await versions();
    const renewed = await FRESH.renew(database.pool, [fresh, old, { ...lost, attempt: 7 }], 3_600_000);
    assert.deepEqual(renewed, new Set([FRESH.keyOf(fresh), FRESH.keyOf(old)]));
    const after = await versions();
    assert.deepEqual(
      before.map((version, at) => version === after[at]),
      [true, false, true],
    );
  });

  it('that is given back has not had this attempt, and one that had all of them is not claimed again', async () => {
    await add({ a: 1 });
    await PIECES.giveBack(database.pool, await claim());
    assert.deepEqual(await states(), [{ id: 1, status: 'pending', attempt: 0 }]);
    for (let attempt = 1; attempt <= 2; attempt++) {
      const [one] = await claim();
      assert.ok(one);
      await expire(one);
      assert.equal(await PIECES.requeue(database.pool, 2), attempt < 2 ? 1 : 0);
    }
    assert.deepEqual(await states(), [{ id: 1, status: 'running', attempt: 2 }]);
  });

  it('is locked in the order of keys by whatever changes several, and skipped by claims and take-overs', async () => {
    const batch = await add({ a: 40 });
    const claims = await claim(40);
    const renewals = Array.from({ length: 12 }, (_, at) =>
      PIECES.renew(database.pool, at % 2 === 0 ? claims : claims.toReversed(), 60_000),
    );
    for (const renewed of await Promise.all(renewals)) assert.equal(renewed.size, 40);
    const client = await database.pool.connect();
    try {
      await client.query('begin');
      await client.query('select 1 from test_pieces where batch = $1 and id <= 10 for update', [batch]);
      await database.pool.query(
        `update test_pieces set lease_until = now() - interval '1 second' where id > 10`,
      );
      assert.equal(await PIECES.requeue(database.pool, 5), 30);
    } finally {
      await client.query('rollback');
      client.release();
    }
  });

  it('takes the quotas of its organization, the first refusal first', () => {
    assert.equal(
      PIECES.refusal('$1', '$2', '$3'),
      `coalesce(try_quota($1, 'pending_invocations', $2, '2 seconds'), try_quota($1, 'cores', $3, '2 seconds'))`,
    );
    assert.throws(() => PIECES.refusal('$1', '$2'), /test-pieces has no amount of cores/);
  });
});

describe('organizations', () => {
  it('take turns: one that floods delays the first piece of none', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 2, maxLength: 5 }),
        fc.integer({ min: 1, max: 6 }),
        async (counts, size) => {
          await add(Object.fromEntries(counts.map((count, at) => [`org-${at}`, count])));
          const had = new Map<string, number>();
          for (let claimed = await claim(size); claimed.length > 0; claimed = await claim(size)) {
            const before = new Map(had);
            for (const { org } of claimed) had.set(org, (had.get(org) ?? 0) + 1);
            // All are held: whoever got one had no more than any other that still waits.
            for (const [at, count] of counts.entries()) {
              const waits = had.get(`org-${at}`) ?? 0;
              if (waits === count) continue;
              for (const { org } of claimed)
                assert.ok((before.get(org) ?? 0) <= waits, `${org} before org-${at}`);
            }
          }
          assert.deepEqual(
            counts.map((_, at) => had.get(`org-${at}`)),
            counts,
          );
        },
      ),
      { numRuns: propertyRuns(60, 6) },
    );
  });

  it('share the places of a server', async () => {
    const inFlight = new InFlight(8);
    const ends: (() => void)[] = [];
    const flood = (): void => {
      while (inFlight.places.mayTake('flood'))
        inFlight.run('flood', () => new Promise<void>((resolve) => ends.push(resolve)));
    };
    flood();
    assert.equal(inFlight.size, 4);
    assert.equal(inFlight.places.mayTake('newcomer'), true);
    for (const end of ends) end();
    await inFlight.settled();
    assert.deepEqual([inFlight.size, inFlight.places.total], [0, 0]);
  });
});

/** What one step of a history does. Workers are servers: a killed one forgets what it had claimed. */
type Act =
  | { act: 'claim'; worker: number; most: number }
  | { act: 'finish' | 'finish-twice' | 'renew' | 'give-back' | 'kill' | 'stall'; worker: number }
  | { act: 'step-clock'; worker: number; ms: number }
  | { act: 'sweep' };

const WORKERS = 3;
const worker = fc.nat({ max: WORKERS - 1 });
const acts: fc.Arbitrary<Act> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      act: fc.constant('claim' as const),
      worker,
      most: fc.integer({ min: 1, max: 4 }),
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      act: fc.constantFrom('finish', 'finish-twice', 'renew', 'give-back', 'kill', 'stall'),
      worker,
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      act: fc.constant('step-clock' as const),
      worker,
      ms: fc.integer({ min: -1e9, max: 1e9 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ act: fc.constant('sweep' as const) }) },
);

describe('workers that are killed, stall, repeat themselves and have wrong clocks', () => {
  it('end each piece exactly once, lose none, and never write for an attempt that was replaced', async (t) => {
    // The wall clock of this process is that of all workers: a step of it must change nothing, in the middle of a lease.
    const realNow = Date.now;
    t.after(() => (Date.now = realNow));
    await fc.assert(
      fc.asyncProperty(
        fc.array(acts, { minLength: 20, maxLength: 60, size: 'max' }),
        fc.integer({ min: 1, max: 8 }),
        async (history, pieces) => {
          const batch = await add({ a: pieces, b: 1 });
          const held = Array.from({ length: WORKERS }, (): Claim[] => []);
          /** The newest attempt of each piece, as the test knows it. */
          const owner = new Map<number, number>();
          const ended = new Set<number>();
          const write = async (claims: readonly Claim[]): Promise<void> => {
            const rights = claims.filter(isOwned);
            const done = await finish(claims);
            assert.deepEqual(
              done.toSorted((a, b) => a - b),
              [...new Set(rights.map(({ id }) => id))].toSorted((a, b) => a - b),
            );
            for (const id of done) ended.add(id);
          };
          const perform = async (act: Act): Promise<void> => {
            if (act.act === 'sweep') {
              await PIECES.requeue(database.pool, 1_000);
              return;
            }
            const mine = held[act.worker] ?? [];
            if (act.act === 'claim')
              for (const one of await claim(act.most)) {
                assert.ok(
                  one.attempt > (owner.get(one.id) ?? 0) && !ended.has(one.id),
                  'a claim replaces all before it',
                );
                owner.set(one.id, one.attempt);
                mine.push(one);
              }
            else if (act.act === 'finish') await write(mine.splice(0));
            else if (act.act === 'finish-twice') {
              await write(mine);
              await write(mine);
            } else if (act.act === 'renew') {
              const renewed = await PIECES.renew(database.pool, mine, 60_000);
              assert.deepEqual(renewed, new Set(mine.filter(isOwned).map(PIECES.keyOf)));
            } else if (act.act === 'give-back') {
              const given = mine.splice(0).filter(isOwned);
              await PIECES.giveBack(database.pool, given);
              for (const { id, attempt } of given) owner.set(id, attempt - 1);
            } else if (act.act === 'kill') for (const one of mine.splice(0)) await expire(one);
            else if (act.act === 'stall') {
              for (const one of mine) if (isOwned(one)) await expire(one);
              await PIECES.requeue(database.pool, 1_000);
              for (const one of mine) if (isOwned(one)) requeued.add(`${one.id} ${one.attempt}`);
            } else if (act.act === 'step-clock') Date.now = () => realNow() + act.ms;
          };
          /** Attempts that were taken over: their holder may still believe to be the owner. */
          const requeued = new Set<string>();
          const isOwned = ({ id, attempt }: Claim): boolean =>
            owner.get(id) === attempt && !ended.has(id) && !requeued.has(`${id} ${attempt}`);
          for (const act of history) await perform(act);
          // Whatever has happened, one worker that lives on ends the rest.
          await database.pool.query(
            `update test_pieces set lease_until = now() - interval '1 second' where status = 'running'`,
          );
          await PIECES.requeue(database.pool, 1_000);
          for (let rest = await claim(5); rest.length > 0; rest = await claim(5)) {
            for (const { id, attempt } of rest) owner.set(id, attempt);
            await write(rest);
          }
          const { rows } = await database.pool.query<{ id: number; n: number }>(
            'select id, count(*)::integer as n from test_ends where batch = $1 group by id order by id',
            [batch],
          );
          assert.deepEqual(
            rows,
            Array.from({ length: pieces + 1 }, (_, at) => ({ id: at + 1, n: 1 })),
          );
        },
      ),
      { numRuns: propertyRuns(200, 15) },
    );
  });

  it('of several loops at a time, end each piece exactly once', async () => {
    await add({ a: 60, b: 5 });
    let stalls = 0;
    const loops = Array.from({ length: 3 }, () =>
      createWorkLoop({
        lanes: 2,
        async step() {
          const claims = await claim(3);
          if (claims.length === 0) return (await PIECES.requeue(database.pool, 1_000)) > 0;
          // Some holders stall until others have taken over, and then write.
          if (stalls++ % 4 === 0) {
            for (const one of claims) await expire(one);
            await PIECES.requeue(database.pool, 1_000);
            await sleep(0);
          }
          await finish(claims);
          return true;
        },
        onError: (error) => assert.fail(String(error)),
      }),
    );
    await until(async () => {
      await Promise.all(loops.map((loop) => loop.sweep()));
      return (await states()).every(({ status }) => status === 'done');
    });
    await Promise.all(loops.map((loop) => loop.close()));
    const { rows } = await database.pool.query('select id from test_ends group by id having count(*) <> 1');
    assert.deepEqual(rows, []);
    assert.equal((await database.pool.query('select id from test_ends')).rowCount, 65);
  });
});

describe('a loop', () => {
  it('makes of all requests during a pass one further pass, which begins after them', async () => {
    let passes = 0;
    let gate = Promise.withResolvers<void>();
    const loop = createWorkLoop({
      async step() {
        passes++;
        await gate.promise;
      },
      onError: () => undefined,
    });
    loop.kick();
    const during = [loop.sweep(), loop.sweep()];
    loop.kick();
    assert.equal(passes, 1);
    const first = gate;
    gate = Promise.withResolvers();
    first.resolve();
    await until(() => passes === 2);
    gate.resolve();
    await Promise.all(during);
    await loop.idle();
    assert.equal(passes, 2);
  });

  it('continues after an error, which the waiting caller gets, or else the log', async () => {
    const seen: unknown[] = [];
    let isBroken = true;
    const loop = createWorkLoop({
      step: () => (isBroken ? Promise.reject(new Error('broken')) : Promise.resolve()),
      onError: (error) => seen.push(error),
    });
    await assert.rejects(loop.sweep(), /broken/);
    assert.equal(seen.length, 0);
    loop.kick();
    await loop.idle();
    await until(() => seen.length === 1);
    isBroken = false;
    await loop.sweep();
  });

  it('repeats steps until there is no more, and begins none once it is closed', async () => {
    let left = 10;
    let isClosed = false;
    const loop = createWorkLoop({
      lanes: 3,
      async step() {
        assert.equal(isClosed, false);
        return --left > 0;
      },
      onError: () => undefined,
    });
    await loop.sweep();
    assert.ok(left <= 0);
    await loop.close();
    isClosed = true;
    loop.kick();
    await loop.sweep();
    await loop.idle();
  });
});
