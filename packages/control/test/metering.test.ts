/**
 * "guaranteed CPU and memory are metered per second while a sandbox is starting, running or stopping; […] pending,
 * paused and stopped sandboxes accrue no CPU or memory charges; deletion stops billing instantly" (Limits).
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SANDBOX_STATUSES, type SandboxStatus } from '@releap/contract';
import * as fc from 'fast-check';
import { inspectMeters, type InspectedMeter } from '@releap/testing/inspect';
import { openFresh } from '@releap/testing/postgres';
import { propertyRuns } from '@releap/testing/repetitions';
import { chargeMeters } from '../src/tenancy/billing/charge-meters.ts';
import { METERED_STATUSES } from '../src/tenancy/billing/metered-statuses.ts';
import { FREE } from '../src/tenancy/billing/prices.ts';
import {
  accounts,
  charged,
  exactCost,
  newOrg,
  newRunner,
  newSandbox,
  PRICES,
  setStatus,
} from './support/billing.ts';

const database = await openFresh();

const metered = (status: SandboxStatus): boolean => (METERED_STATUSES as readonly string[]).includes(status);

const meters = (sandboxId: string): Promise<InspectedMeter[]> =>
  inspectMeters(database, { sandbox_id: sandboxId });
const charge = (options: Partial<Parameters<typeof chargeMeters>[2]> = {}) =>
  chargeMeters(database.pool, PRICES, { meterMs: 60_000, ...options });

describe('meters', () => {
  it('run in exactly the statuses that the table of metered statuses names, whatever changes the status', async () => {
    const { rows } = await database.pool.query<{ status: SandboxStatus; is: boolean }>(
      'select status, sandbox_is_metered(status) as is from unnest($1::text[]) as status',
      [SANDBOX_STATUSES],
    );
    for (const { status, is } of rows) assert.equal(is, metered(status), status);
    const { projectId } = await newOrg(database);
    const id = await newSandbox(database, projectId, { status: 'pending' });
    let from: SandboxStatus = 'pending';
    for (const to of [...SANDBOX_STATUSES, ...SANDBOX_STATUSES.toReversed()]) {
      await setStatus(database, id, to);
      const open = (await meters(id)).filter((meter) => meter.closed_at === null);
      assert.equal(open.length, metered(to) ? 1 : 0, `${from} to ${to}`);
      from = to;
    }
  });

  it('end in the statement that asks for the deletion, and nothing after it is charged', async () => {
    const { projectId } = await newOrg(database);
    const id = await newSandbox(database, projectId);
    await setStatus(database, id, 'deleting');
    const [meter] = await meters(id);
    assert.ok(meter?.closed_at);
    await charge({ now: new Date(Date.now() + 3_600_000) });
    assert.deepEqual(await meters(id), [], 'settled and gone');
    const micros = BigInt(meter.closed_at.getTime() - meter.opened_at.getTime() + 1) * 1000n;
    const cost = await charged(database, id);
    assert.ok(cost <= exactCost({ millicores: 125, memMib: 1024, gpus: 0, spot: false }, micros));
    await setStatus(database, id, 'deleted');
    await charge({ now: new Date(Date.now() + 7_200_000) });
    assert.equal(await charged(database, id), cost);
  });

  it('end with a sandbox whose row is removed', async () => {
    const { projectId } = await newOrg(database);
    const id = await newSandbox(database, projectId);
    await database.pool.query('delete from sandboxes where id = $1', [id]);
    assert.notEqual((await meters(id))[0]?.closed_at, null);
  });

  it('of a silent host are charged up to the last time it was heard of, and those of a lost one end there', async () => {
    const { projectId } = await newOrg(database);
    const seen = new Date(Date.now() - 30_000);
    const runnerId = await newRunner(database, seen);
    const id = await newSandbox(database, projectId, { runnerId });
    const opened = new Date(seen.getTime() - 90_000);
    await database.pool.query(
      'update sandbox_meters set opened_at = $2, metered_until = $2 where sandbox_id = $1',
      [id, opened],
    );
    await charge();
    assert.deepEqual((await meters(id))[0]?.metered_until, seen);
    await charge({ now: new Date(Date.now() + 600_000) });
    assert.deepEqual((await meters(id))[0]?.metered_until, seen, 'not a second more');
    await setStatus(database, id, 'lost');
    assert.deepEqual((await meters(id))[0]?.closed_at, seen);
    await charge();
    const size = { millicores: 125, memMib: 1024, gpus: 0, spot: false };
    assert.equal(await charged(database, id), exactCost(size, 90_000_000n));
    // It is back: the time between is not charged.
    await database.pool.query('update runners set last_seen_at = now() where id = $1', [runnerId]);
    await setStatus(database, id, 'running');
    assert.equal((await meters(id)).length, 1);
  });

  it('cost nothing while billing is off, and no time of then is charged later', async () => {
    const { projectId } = await newOrg(database);
    const id = await newSandbox(database, projectId);
    const later = new Date(Date.now() + 3_600_000);
    await chargeMeters(database.pool, FREE, { meterMs: 1000, now: later });
    assert.equal(await charged(database, id), 0n);
    await charge({ now: new Date(later.getTime() + 60_000) });
    const size = { millicores: 125, memMib: 1024, gpus: 0, spot: false };
    assert.equal(await charged(database, id), exactCost(size, 60_000_000n));
  });
});

describe('charges', () => {
  const size = fc.record({
    millicores: fc.integer({ min: 1, max: 16_000 }),
    memMib: fc.integer({ min: 1, max: 65_536 }),
    gpus: fc.integer({ min: 0, max: 8 }),
    spot: fc.boolean(),
  });
  /** Steps of simulated time; in each something happens. */
  const step = fc.record({
    ms: fc.integer({ min: 0, max: 400_000 }),
    micros: fc.integer({ min: 0, max: 999 }),
    does: fc.constantFrom('charge', 'charge', 'charge twice at once', 'crash', 'stop', 'start', 'grant'),
    which: fc.nat(),
    batch: fc.integer({ min: 1, max: 5 }),
  });

  it('of any history are to the nano-credit what an exact model says, and the ledger sums up to the balance', async () => {
    const orgs = [await newOrg(database), await newOrg(database)];
    await fc.assert(
      fc.asyncProperty(
        fc.array(size, { minLength: 1, maxLength: 6 }),
        fc.array(step, { minLength: 1, maxLength: 25 }),
        async (sizes, steps) => {
          // Long ago, so that simulated times never meet the clock that the triggers read.
          let clock = BigInt(Date.UTC(2001, 0, 1)) * 1000n;
          const at = (): string =>
            `${new Date(Number(clock / 1000n)).toISOString().slice(0, -1)}${String(clock % 1000n).padStart(3, '0')}Z`;
          const vms = await Promise.all(
            sizes.map(async (one, index) => ({
              size: one,
              id: await newSandbox(database, orgs[index % 2]?.projectId ?? '', { ...one, status: 'stopped' }),
              /** When the meter that runs was opened; undefined when none runs. */
              since: undefined as bigint | undefined,
              cost: 0n,
              periods: [] as [bigint, bigint][],
            })),
          );
          const start = async (vm: (typeof vms)[number]): Promise<void> => {
            await setStatus(database, vm.id, 'running');
            await database.pool.query(
              'update sandbox_meters set opened_at = $2, metered_until = $2 where sandbox_id = $1 and closed_at is null',
              [vm.id, at()],
            );
            vm.since = clock;
          };
          const stop = async (vm: (typeof vms)[number]): Promise<void> => {
            if (vm.since === undefined) return;
            await setStatus(database, vm.id, 'stopped');
            await database.pool.query(
              `update sandbox_meters set closed_at = $2 where sandbox_id = $1 and closed_at > now() - interval '1 minute'`,
              [vm.id, at()],
            );
            vm.cost += exactCost(vm.size, clock - vm.since);
            vm.periods.push([vm.since, clock]);
            vm.since = undefined;
          };
          const pass = (batch: number, on = database.pool as Parameters<typeof chargeMeters>[0]) =>
            chargeMeters(on, PRICES, { meterMs: 60_000, batch, now: at() as unknown as Date });
          for (const vm of vms) await start(vm);
          for (const { ms, micros, does, which, batch } of steps) {
            clock += BigInt(ms) * 1000n + BigInt(micros);
            const vm = vms[which % vms.length];
            if (vm === undefined) continue;
            if (does === 'charge') await pass(batch);
            if (does === 'charge twice at once') await Promise.all([pass(batch), pass(3), pass(1)]);
            if (does === 'crash') {
              await database
                .transaction(async (client) => {
                  await pass(batch, client);
                  throw new Error('dies before the commit');
                })
                .catch(() => undefined);
            }
            if (does === 'stop') await stop(vm);
            if (does === 'start' && vm.since === undefined) await start(vm);
            if (does === 'grant') {
              await database.pool.query(
                `insert into credit_ledger (org_id, amount, kind) values ($1, $2, 'grant')`,
                [orgs[which % 2]?.orgId, which % 1_000_000],
              );
            }
            for (const { balance, sum } of await accounts(database)) assert.equal(balance, sum);
          }
          clock += 1n;
          for (const vm of vms) await stop(vm);
          await Promise.all([pass(5), pass(2)]);
          await pass(5);
          for (const vm of vms) {
            assert.equal(await charged(database, vm.id), vm.cost);
            assert.deepEqual(await meters(vm.id), []);
            // No microsecond twice, and none left out but where it cost nothing.
            const { rows } = await database.pool.query<{ since: string; until: string }>(
              `select (extract(epoch from period_from) * 1000000)::bigint as since, (extract(epoch from period_to) * 1000000)::bigint as until
                 from ledger_entries where sandbox_id = $1 and kind = 'usage' order by period_from`,
              [vm.id],
            );
            let last = 0n;
            for (const row of rows) {
              assert.ok(BigInt(row.since) >= last, 'periods do not overlap');
              last = BigInt(row.until);
            }
          }
          for (const { balance, sum } of await accounts(database)) assert.equal(balance, sum);
        },
      ),
      { numRuns: propertyRuns(40) },
    );
  });

  it('are refused by the database when the same second would be charged twice', async () => {
    const { orgId, projectId } = await newOrg(database);
    const id = await newSandbox(database, projectId, { status: 'stopped' });
    const insert = `insert into credit_usage (org_id, amount, kind, sandbox_id, region, period_from, period_to)
      values ($1, -1, 'usage', $2, 'here', '2001-01-01', '2001-01-02')`;
    await database.pool.query(insert, [orgId, id]);
    await assert.rejects(database.pool.query(insert, [orgId, id]), /credit_usage_\w*period_from_sandbox_id/);
  });
});

describe('the ledger', () => {
  it('is append-only', async () => {
    const { orgId } = await newOrg(database);
    await database.pool.query(`insert into credit_ledger (org_id, amount, kind) values ($1, 5, 'grant')`, [
      orgId,
    ]);
    for (const sql of [
      'update credit_ledger set amount = 6 where org_id = $1',
      'delete from credit_ledger where org_id = $1',
    ])
      await assert.rejects(database.pool.query(sql, [orgId]), /append-only/);
  });
});
