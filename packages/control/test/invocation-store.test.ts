/** What is recorded of invocations that have ended, and what they cost: "function billing is per invocation duration". */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import * as fc from 'fast-check';
import { until } from '@releap/testing/eventually';
import { openFresh } from '@releap/testing/postgres';
import { propertyRuns } from '@releap/testing/repetitions';
import {
  chargeFunctions,
  chargeProjectFunctions,
  FUNCTION_SCALE,
} from '../src/tenancy/billing/function-charges.ts';
import { FREE } from '../src/tenancy/billing/prices.ts';
import {
  isStorableResult,
  recordFinished,
  type FinishedInvocation,
} from '../src/functions/invocations/store.ts';
import { accounts, functionCost, newOrg, newSandbox, PRICES } from './support/billing.ts';
import { finished, newFunction, type FunctionRow } from './support/functions.ts';

const database = await openFresh();

const record = (...rows: FinishedInvocation[]) => recordFinished(database.pool, PRICES, rows);
const charge = () => chargeFunctions(database.pool, { windowMs: 0 });
const one = async <Row extends object>(text: string, values: unknown[]): Promise<Row | undefined> =>
  (await database.pool.query<Row>(text, values)).rows[0];
const row = (id: string) =>
  one<{ status: string; attempt: number; error: string | null; result: unknown; billed: string | null }>(
    'select status, attempt, error, result, billed from invocations where id = $1',
    [id],
  );
/** Nano-credits in the ledger for a function, and its entries. */
async function ledger(of: FunctionRow): Promise<{ sum: bigint; notes: string[] }> {
  const { rows } = await database.pool.query<{ amount: string; note: string }>(
    `select amount, note from credit_usage where function_id = $1 and kind = 'usage' order by id`,
    [of.id],
  );
  return {
    sum: rows.reduce((sum, entry) => sum - BigInt(entry.amount), 0n),
    notes: rows.map(({ note }) => note),
  };
}
const newInvocation = async (
  of: FunctionRow,
  status: string,
  attempt: number,
): Promise<FinishedInvocation> => {
  const given = finished(of, { source: 'spawn', attempt });
  await database.pool.query(
    `insert into invocations (id, queued_at, project_id, function_id, source, status, attempt) values ($1, $2, $3, $4, 'spawn', $5, $6)`,
    [given.id, given.queuedAt, of.projectId, of.id, status, attempt],
  );
  await database.pool.query(`insert into invocation_payloads values ($1, 'text/plain', 'body')`, [given.id]);
  return given;
};
const setUp = async (size: { vcpus?: number; memMib?: number } = {}) => {
  const org = await newOrg(database);
  return { ...org, fn: await newFunction(database, org.projectId, size) };
};

describe('synchronous invocations', () => {
  it('are recorded and charged once, however often and from how many sides they arrive', async () => {
    const { fn } = await setUp();
    const rows = Array.from({ length: 50 }, () => finished(fn));
    const answers = await Promise.all([
      record(...rows),
      record(...rows.toReversed()),
      record(...rows.slice(10), finished(fn, { durationMs: 0 })),
    ]);
    assert.equal(
      answers.reduce((sum, ids) => sum + ids.size, 0),
      51,
    );
    assert.equal((await record(...rows)).size, 0);
    await charge();
    const { sum, notes } = await ledger(fn);
    assert.equal(sum, (50n * functionCost(fn, 20_000n, PRICES)) / FUNCTION_SCALE);
    assert.deepEqual(notes, [`function ${fn.name}: 50 invocations`]);
  });

  it('that never reached a handler cost nothing, and failed ones cost their time', async () => {
    const { fn } = await setUp();
    const other = await newFunction(database, fn.projectId);
    const shed = finished(fn, {
      status: 'shed',
      durationMs: null,
      startedAt: null,
      cold: null,
      versionId: null,
    });
    // The version of another function.
    const foreign = finished(fn, { versionId: other.versionId });
    const deleted = finished({ ...fn, id: newUuid() });
    const ids = await record(shed, foreign, deleted, finished(fn, { status: 'timeout', durationMs: 1_000 }));
    assert.equal(ids.size, 3);
    assert.equal(ids.has(deleted.id), false);
    assert.deepEqual([(await row(shed.id))?.billed, (await row(foreign.id))?.billed], ['0', '0']);
    await charge();
    assert.equal((await ledger(fn)).sum, functionCost(fn, 1_000_000n, PRICES) / FUNCTION_SCALE);
  });

  it('store what a handler wrote even where PostgreSQL does not: errors with NUL, half a pair, a megabyte', async () => {
    const { fn } = await setUp();
    const given = finished(fn, { status: 'failed', error: `a\0b\ud800${'x'.repeat(2 ** 20)}` });
    await record(given);
    const { error } = (await row(given.id)) ?? {};
    assert.match(error ?? '', /^a\ufffdb\ufffdx+$/);
    assert.equal(error?.length, 2_000);
    for (const durationMs of [-1, Number.NaN, Infinity])
      await assert.rejects(record(finished(fn, { durationMs })), RangeError);
  });

  it('cost nothing while nothing is charged', async () => {
    const { fn } = await setUp();
    const given = finished(fn);
    await recordFinished(database.pool, FREE, [given]);
    assert.equal((await row(given.id))?.billed, '0');
    assert.equal(await one('select 1 from function_meters where function_id = $1', [fn.id]), undefined);
  });
});

describe('asynchronous invocations', () => {
  it('are ended by the attempt that runs them, once, and their body goes', async () => {
    const { fn } = await setUp();
    const given = await newInvocation(fn, 'running', 2);
    const body = () => one('select 1 from invocation_payloads where invocation_id = $1', [given.id]);
    assert.equal((await record({ ...given, attempt: 1 })).size, 0, 'an earlier attempt');
    assert.ok(await body());
    const result = '{"n":12345678901234567890,  "n":1e400}';
    const ended = await Promise.all([record({ ...given, result }), record({ ...given, status: 'failed' })]);
    assert.equal(
      ended.reduce((sum, ids) => sum + ids.size, 0),
      1,
    );
    assert.equal(await body(), undefined);
    const waiting = await newInvocation(fn, 'pending', 0);
    assert.equal((await record({ ...waiting, attempt: 0 })).size, 0, 'it has not begun');
    await charge();
    assert.equal((await ledger(fn)).sum, functionCost(fn, 20_000n, PRICES) / FUNCTION_SCALE);
  });

  it('keep the JSON of their result as it was written, unless PostgreSQL cannot parse it', async () => {
    const { fn } = await setUp();
    const text = '{"n":12345678901234567890,  "s":"\\u0000\\"[[[", "a":[[1]]}';
    const given = await newInvocation(fn, 'running', 1);
    await record({ ...given, result: text });
    const stored = await one('select result::text as result from invocations where id = $1', [given.id]);
    assert.deepEqual(stored, { result: text });
    const deep = await newInvocation(fn, 'running', 1);
    const nested = (levels: number): string => '['.repeat(levels) + ']'.repeat(levels);
    assert.equal(isStorableResult(nested(1_000)), true);
    assert.equal((await record({ ...deep, result: nested(1_000) })).size, 1);
    for (const bad of [nested(1_001), nested(100_000), '{', `"${'x'.repeat(256 * 1024)}"`])
      assert.equal(isStorableResult(bad), false, bad.slice(0, 10));
    await assert.rejects(record({ ...given, result: '{' }), RangeError);
  });

  it('count their results among stored bytes, and keep none beyond the quota', async () => {
    const { fn, orgId } = await setUp();
    const { fn: stranger } = await setUp();
    const stored = async (): Promise<number> =>
      Number((await one<{ used: string }>(`select org_used($1, 'stored_bytes') as used`, [orgId]))?.used);
    await database.pool.query(
      `insert into quota_defaults values ('stored_bytes', 1000000) on conflict do nothing`,
    );
    await database.pool.query(
      `insert into org_quotas (org_id, resource, quota) values ($1, 'stored_bytes', 100)`,
      [orgId],
    );
    const end = async (of: FunctionRow, bytes: number): Promise<FinishedInvocation> => ({
      ...(await newInvocation(of, 'running', 1)),
      result: `"${'x'.repeat(bytes - 2)}"`,
    });
    const [first, second] = [await end(fn, 60), await end(fn, 30)];
    await record(first);
    assert.equal(await stored(), 60);
    await record(first);
    assert.equal(await stored(), 60, 'once');
    await record(second);
    assert.equal(await stored(), 90);
    // Two that would fit alone, with one of another organization and one without a result.
    const [third, fourth, foreign] = [await end(fn, 9), await end(fn, 8), await end(stranger, 500)];
    const empty = await newInvocation(fn, 'running', 1);
    assert.equal((await record(third, fourth, foreign, empty)).size, 4);
    for (const { id } of [third, fourth]) {
      const { status, result, error } = (await row(id)) ?? {};
      assert.deepEqual([status, result], ['succeeded', null]);
      assert.match(
        error ?? '',
        /^the result of [89] bytes is not kept: the quota of 100 stored bytes is used up$/,
      );
    }
    assert.notEqual((await row(foreign.id))?.result, null);
    assert.equal((await row(empty.id))?.error, null);
    assert.equal(await stored(), 90);
    await Promise.all([await end(fn, 7), await end(fn, 6)].map((each) => record(each)));
    assert.equal((await stored()) <= 100, true, 'together');
  });
});

describe('the ledger of functions', () => {
  it('adds up to the exact cost, however invocations are divided into batches and entries', async () => {
    const { fn, orgId } = await setUp({ vcpus: 3, memMib: 777 });
    let parts = 0n;
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.integer({ min: 0, max: 5_000_000 }), fc.boolean()), { maxLength: 8 }),
        async (given) => {
          for (const [micros, pays] of given) {
            await record(finished(fn, { durationMs: micros / 1_000 }));
            parts += functionCost(fn, BigInt(micros), PRICES);
            if (pays) await charge();
          }
          await charge();
          assert.equal((await ledger(fn)).sum, parts / FUNCTION_SCALE);
          const account = (await accounts(database)).find((each) => each.org_id === orgId);
          assert.equal(-(account?.balance ?? 0n), parts / FUNCTION_SCALE);
          assert.equal(account?.balance ?? 0n, account?.sum ?? 0n);
        },
      ),
      { numRuns: propertyRuns(100) },
    );
  });

  it('gets one entry a minute for each function, not one for each invocation, from any number of servers', async () => {
    const { fn } = await setUp();
    const other = await newFunction(database, fn.projectId);
    for (let round = 0; round < 5; round += 1) {
      await record(finished(fn), finished(other), finished(fn));
      await chargeFunctions(database.pool);
    }
    assert.deepEqual((await ledger(fn)).notes, []);
    await database.pool.query(
      `update function_meters set since = now() - interval '61 s' where function_id = any($1)`,
      [[fn.id, other.id]],
    );
    await Promise.all(Array.from({ length: 4 }, () => chargeFunctions(database.pool, { batch: 1 })));
    assert.deepEqual((await ledger(fn)).notes, [`function ${fn.name}: 10 invocations`]);
    assert.deepEqual((await ledger(other)).notes, [`function ${other.name}: 5 invocations`]);
  });

  it('is written for the others when one cannot be charged, which is parked with the reason', async () => {
    const { fn } = await setUp();
    const broken = await newFunction(database, fn.projectId);
    await record(finished(fn), finished(broken));
    await database.pool.query('update function_meters set parts = 1e45 where function_id = $1', [broken.id]);
    // As the rollback of the batch that fails may hold it for a moment longer than its error takes to arrive.
    const holder = await database.pool.connect();
    await holder.query('begin');
    await holder.query('select 1 from function_meters where function_id = $1 for update', [fn.id]);
    const charging = charge();
    const isWaiting = () =>
      one(
        `select 1 from pg_locks where not granted and pid in
           (select pid from pg_stat_activity where datname = current_database() and query like '%function_meters%')`,
        [],
      );
    await Promise.race([charging, until(async () => (await isWaiting()) !== undefined)]);
    await holder.query('commit');
    holder.release();
    const { parked } = await charging;
    assert.deepEqual(
      parked.map((each) => each.functionId),
      [broken.id],
    );
    assert.match(parked[0]?.reason ?? '', /out of range/);
    assert.equal((await ledger(fn)).notes.length, 1);
    assert.deepEqual((await charge()).parked, [], 'not again within the hour');
    await database.pool.query('delete from function_meters where function_id = $1', [broken.id]);
  });

  it('has the last invocations of a project that is deleted', async () => {
    const { fn, projectId } = await setUp();
    await record(finished(fn));
    await chargeProjectFunctions(database.pool, projectId);
    assert.equal((await ledger(fn)).notes.length, 1);
  });

  it('does not charge instances of functions as sandboxes', async () => {
    const { projectId } = await newOrg(database);
    const id = await newSandbox(database, projectId, { status: 'pending' });
    await database.pool.query(
      `update sandboxes set owner_kind = 'service', owner_service = 'functions', status = 'running' where id = $1`,
      [id],
    );
    assert.equal(await one('select 1 from sandbox_meters where sandbox_id = $1', [id]), undefined);
  });
});
