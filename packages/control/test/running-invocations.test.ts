/** Invocations are charged while they run, and settled at their end: "function billing is per invocation duration". */
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
import { organizationsCrossing } from '../src/tenancy/billing/unbilled.ts';
import { enqueue } from '../src/functions/invocations/enqueue.ts';
import { exhausted, INVOCATIONS, lease, type LeasedInvocation } from '../src/functions/invocations/lease.ts';
import { chargeRunning, endAbandoned, type RunningInvocation } from '../src/functions/invocations/running.ts';
import { recordFinished, type FinishedInvocation } from '../src/functions/invocations/store.ts';
import { accounts, functionCost, newOrg, PRICES } from './support/billing.ts';
import { finished, newFunction, type FunctionRow } from './support/functions.ts';

const database = await openFresh();

const record = (...rows: FinishedInvocation[]) => recordFinished(database.pool, PRICES, rows);
const report = (...rows: RunningInvocation[]) => chargeRunning(database.pool, PRICES, rows);

const setUp = async () => {
  const org = await newOrg(database);
  return { ...org, fn: await newFunction(database, org.projectId, { vcpus: 2, memMib: 777 }) };
};

function running(of: FunctionRow, values: Partial<RunningInvocation> = {}): RunningInvocation {
  return {
    id: newUuid(),
    queuedAt: new Date(Date.now() - 60_000),
    functionId: of.id,
    versionId: of.versionId,
    version: 1,
    source: 'invoke',
    attempt: null,
    startedAt: new Date(Date.now() - 60_000),
    elapsedMs: 60_000,
    cold: false,
    ...values,
  };
}
/** The end of what was reported, after so long. */
const endOf = (one: RunningInvocation, of: FunctionRow, durationMs: number): FinishedInvocation =>
  finished(of, { id: one.id, queuedAt: one.queuedAt, durationMs });

/** Nano-credits in the ledger of an organization, once all that is known is charged. */
async function ledger(orgId: string): Promise<bigint> {
  await chargeFunctions(database.pool, { windowMs: 0, orgs: [orgId] });
  const account = (await accounts(database)).find((each) => each.org_id === orgId);
  assert.equal(account?.balance ?? 0n, account?.sum ?? 0n);
  return -(account?.balance ?? 0n);
}
const cost = (of: FunctionRow, ...ms: number[]): bigint =>
  ms.reduce((sum, each) => sum + functionCost(of, BigInt(Math.round(each * 1_000)), PRICES), 0n) /
  FUNCTION_SCALE;

async function leased(of: FunctionRow): Promise<LeasedInvocation> {
  const payloads = [{ id: newUuid(), contentType: 'text/plain', body: Buffer.from('x') }];
  await enqueue(database.pool, { projectId: of.projectId, name: of.name, source: 'spawn', payloads });
  const [one] = await lease(database.pool, new Map([[of.id, 1]]));
  assert.ok(one);
  return one;
}
const statusOf = async (id: string): Promise<string | undefined> =>
  (await database.pool.query<{ status: string }>('select status from invocations where id = $1', [id]))
    .rows[0]?.status;

describe('an invocation that runs', () => {
  it('is charged as it is reported, once for each part, and its end charges the rest', async () => {
    const { fn, orgId } = await setUp();
    const one = running(fn);
    await Promise.all([report(one), report(one)]);
    assert.equal(await ledger(orgId), cost(fn, 60_000));
    await report({ ...one, elapsedMs: 90_000 });
    // Reports may overtake each other.
    await report({ ...one, elapsedMs: 75_000 });
    assert.equal(await ledger(orgId), cost(fn, 90_000));
    assert.equal(await statusOf(one.id), 'running');
    const end = endOf(one, fn, 100_000.125);
    assert.equal((await record(end)).size, 1);
    assert.equal((await record(end)).size, 0);
    await report({ ...one, elapsedMs: 99_000 });
    assert.equal(await ledger(orgId), cost(fn, 100_000.125));
    assert.equal(await statusOf(one.id), 'succeeded');
  });

  it('stays charged when its gateway dies, and ends; a gateway that was cut off still settles it', async () => {
    const { fn, orgId } = await setUp();
    const [dead, cut] = [running(fn), running(fn)];
    await report(dead, cut);
    assert.equal(await endAbandoned(database.pool, 600_000), 0);
    await database.pool.query(
      `update invocations set reported_at = now() - interval '1 hour' where id = any($1)`,
      [[dead.id, cut.id]],
    );
    assert.equal(await endAbandoned(database.pool, 600_000), 2);
    assert.equal(await statusOf(dead.id), 'failed');
    await report({ ...cut, elapsedMs: 70_000 });
    assert.equal(await statusOf(cut.id), 'running');
    await record(endOf(cut, fn, 80_000));
    assert.equal(await ledger(orgId), cost(fn, 60_000, 80_000));
    // No attempt: it has no body that another server could send.
    assert.equal(await INVOCATIONS.requeue(database.pool, 5), 0);
    assert.deepEqual(await exhausted(database.pool, 1, 10), []);
  });

  it('counts against the limits of its organization by the minute', async () => {
    const { fn, orgId } = await setUp();
    await database.pool.query(
      `insert into credit_ledger (org_id, amount, kind) values ($1, 1000000, 'grant')`,
      [orgId],
    );
    await report(running(fn, { elapsedMs: 1_000 }));
    const crossing = () => organizationsCrossing(database.pool, PRICES, 0n);
    assert.equal((await crossing()).includes(orgId), false);
    await report(running(fn, { elapsedMs: 86_400_000 }));
    assert.ok((await crossing()).includes(orgId));
  });

  it('of an attempt that another one has replaced is charged no further', async () => {
    const { fn, orgId } = await setUp();
    const { id } = await leased(fn);
    const first = running(fn, { id, attempt: 1, elapsedMs: 5_000 });
    assert.equal((await report(first)).size, 1);
    await database.pool.query(
      `update invocations set lease_until = now() - interval '1 second' where id = $1`,
      [id],
    );
    assert.equal(await INVOCATIONS.requeue(database.pool, 5), 1);
    assert.equal((await report({ ...first, elapsedMs: 9_000 })).size, 0);
    const [second] = await lease(database.pool, new Map([[fn.id, 1]]));
    assert.ok(second);
    await report(running(fn, { id, attempt: 2, elapsedMs: 3_000 }));
    await record(
      finished(fn, { id, queuedAt: second.queued_at, source: 'spawn', attempt: 2, durationMs: 4_000 }),
    );
    assert.equal(await ledger(orgId), cost(fn, 5_000, 4_000));
  });
});

/** Of a gateway that reports each `PERIOD` and whose calls the model knows. */
const PERIOD_MS = 30_000;

it('the sum charged is the time that handlers had, but what a part that died had not reported', async () => {
  const call = fc.record({
    kind: fc.constantFrom('sync', 'async'),
    /** How long the handler has the call in each attempt, in microseconds; all but the last one break. */
    attempts: fc.array(fc.integer({ min: 0, max: 200_000_000 }), { minLength: 1, maxLength: 4 }),
    /** What happens to the last message of each attempt. */
    fate: fc.constantFrom('told', 'told', 'told twice', 'gateway dies', 'server dies', 'late report'),
    /** The version's function is deleted, or its project, while the last attempt runs. */
    deletion: fc.constantFrom('none', 'none', 'function', 'project'),
    /** Of the gateway's wall clock, in milliseconds. */
    step: fc.integer({ min: -3_600_000, max: 3_600_000 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(call, { minLength: 1, maxLength: 4 }), async (calls) => {
      const { fn, orgId, projectId } = await setUp();
      let exact = 0n;
      /** What may be missing, in microseconds. */
      let slack = 0n;
      const jobs: (() => Promise<void>)[] = [];
      for (const { kind, attempts, fate, deletion, step } of calls) {
        const own = await newFunction(database, projectId, { vcpus: 2, memMib: 777 });
        const isSync = kind === 'sync';
        const lives = isSync ? attempts.slice(0, 1) : attempts;
        jobs.push(async () => {
          const invocation = isSync ? undefined : await leased(own);
          const clock = new Date(Date.now() + step);
          for (const [at, micros] of lives.entries()) {
            const isLast = at === lives.length - 1;
            const one = running(own, {
              ...(invocation && { id: invocation.id }),
              attempt: isSync ? null : at + 1,
              queuedAt: clock,
              startedAt: clock,
            });
            for (let ms = PERIOD_MS; ms * 1_000 < micros; ms += PERIOD_MS)
              await report({ ...one, elapsedMs: ms });
            if (isLast && deletion === 'function')
              await database.pool.query(
                `update functions set name = name || '/' || id, current_version = null where id = $1`,
                [own.id],
              );
            if (isLast && deletion === 'project') await chargeProjectFunctions(database.pool, projectId);
            const dies = fate === 'gateway dies' || (fate === 'server dies' && !isSync);
            exact += BigInt(micros);
            if (dies) slack += BigInt(PERIOD_MS) * 1_000n;
            else if (isLast) {
              const end = finished(own, {
                id: one.id,
                queuedAt: invocation?.queued_at ?? clock,
                attempt: one.attempt,
                durationMs: micros / 1_000,
                ...(invocation && { source: 'spawn' as const }),
              });
              if (fate === 'told twice') await Promise.all([record(end), record(end)]);
              else await record(end);
              if (fate === 'late report' && micros > 1_000) await report({ ...one, elapsedMs: 1 });
            } else await report({ ...one, elapsedMs: micros / 1_000 });
            if (isLast || invocation === undefined) continue;
            // Its lease runs out, and another server takes it.
            await INVOCATIONS.renew(database.pool, [{ ...invocation, attempt: at + 1 }], -1);
            // Skipped while the same sweep for another call has locked it.
            await until(async () => {
              await INVOCATIONS.requeue(database.pool, 5);
              return (await lease(database.pool, new Map([[own.id, 1]]))).length === 1;
            });
          }
        });
      }
      // Each has a function of its own: what runs at the same time may end in any order.
      await Promise.all(jobs.map((job) => job()));
      await endAbandoned(database.pool, 0);
      const charged = await ledger(orgId);
      const nanos = (micros: bigint): bigint => functionCost(fn, micros, PRICES) / FUNCTION_SCALE;
      // A meter of each function keeps less than a nano-credit.
      assert.ok(charged <= nanos(exact), `${charged} of ${nanos(exact)} were charged`);
      const least = exact > slack ? nanos(exact - slack) : 0n;
      assert.ok(charged >= least - BigInt(calls.length), `${charged} of at least ${least} were charged`);
    }),
    { numRuns: propertyRuns(100) },
  );
});
