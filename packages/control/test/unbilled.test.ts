/** Hourly entries, limits by the minute; and meters that cannot be charged. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspectLedger, inspectMeters } from '@releap/testing/inspect';
import { openFresh } from '@releap/testing/postgres';
import { chargeMeters } from '../src/tenancy/billing/charge-meters.ts';
import { organizationsCrossing } from '../src/tenancy/billing/unbilled.ts';
import { accounts, charged, exactCost, newOrg, newSandbox, PRICES } from './support/billing.ts';

const HOUR_MS = 3_600_000;
const SIZE = { millicores: 16_000, memMib: 65_536, gpus: 0, spot: false };
const database = await openFresh();

const grant = (orgId: string, amount: bigint): Promise<unknown> =>
  database.pool.query(`insert into credit_ledger (org_id, amount, kind) values ($1, $2, 'grant')`, [
    orgId,
    String(amount),
  ]);
/** An open meter that has run for this long, uncharged. */
async function running(micros: bigint, credits: bigint): Promise<{ orgId: string; id: string }> {
  const { orgId, projectId } = await newOrg(database);
  const id = await newSandbox(database, projectId, SIZE);
  await database.pool.query(
    `update sandbox_meters set metered_until = now() - $2 * interval '1 microsecond' where sandbox_id = $1`,
    [id, String(micros)],
  );
  if (credits !== 0n) await grant(orgId, credits);
  return { orgId, id };
}
const entries = async (id: string): Promise<number> =>
  (await inspectLedger(database, { sandbox_id: id })).length;
const crossing = (limit = 0n): Promise<string[]> => organizationsCrossing(database.pool, PRICES, limit);

describe('use that is not charged yet', () => {
  it('gets one entry an hour, and none before', async () => {
    const { id } = await running(1_800_000_000n, 0n);
    await chargeMeters(database.pool, PRICES, { meterMs: HOUR_MS });
    assert.equal(await entries(id), 0);
    await chargeMeters(database.pool, PRICES, { meterMs: HOUR_MS, now: new Date(Date.now() + HOUR_MS) });
    assert.equal(await entries(id), 1);
  });

  it('counts against the balance by the minute: an organization that runs out is charged at once, and no other', async () => {
    const minute = 60_000_000n;
    const cost = exactCost(SIZE, minute);
    const poor = await running(minute, cost);
    const rich = await running(minute, cost * 1000n);
    // Above zero still, and beyond nothing.
    const close = await running(minute, cost * 2n);
    const orgs = await crossing(cost * 1000n);
    assert.ok(orgs.includes(poor.orgId));
    assert.ok(!orgs.includes(rich.orgId) && !orgs.includes(close.orgId));
    await chargeMeters(database.pool, PRICES, { meterMs: 0, orgs });
    assert.deepEqual([await entries(poor.id), await entries(rich.id), await entries(close.id)], [1, 0, 0]);
    for (const { balance, sum } of await accounts(database)) assert.equal(balance, sum);
    const account = (await accounts(database)).find((one) => one.org_id === poor.orgId);
    assert.ok(account && account.balance <= 0n);
    // Out of credits already and within the overdraft: no entry a minute.
    assert.ok(!(await crossing(cost * 1000n)).includes(poor.orgId));
  });

  it('beyond the overdraft limit counts too, also without an account', async () => {
    const minute = 60_000_000n;
    const { orgId } = await running(minute, 0n);
    assert.ok((await crossing(exactCost(SIZE, minute) / 2n)).includes(orgId));
    assert.ok(!(await crossing(exactCost(SIZE, minute) * 2n)).includes(orgId));
  });
});

describe('a meter that cannot be charged', () => {
  it('is parked with the reason, and all others of its batch are charged', async () => {
    await chargeMeters(database.pool, PRICES, { meterMs: 1 });
    const fine = await Promise.all([1, 2, 3].map(() => running(120_000_000n, 0n)));
    const poison = await running(240_000_000n, 0n);
    // The balance cannot become smaller than this.
    await grant(poison.orgId, -9_223_372_036_854_775_807n);
    const result = await chargeMeters(database.pool, PRICES, { meterMs: 60_000 });
    assert.deepEqual(
      result.parked.map((one) => [one.sandboxId, one.orgId, one.reason]),
      [[poison.id, poison.orgId, 'bigint out of range']],
    );
    for (const one of fine) assert.ok((await charged(database, one.id)) >= exactCost(SIZE, 120_000_000n));
    const meters = await inspectMeters(database, { sandbox_id: poison.id });
    assert.deepEqual(
      meters.map((one) => [one.parked_reason, (one.parked_until?.getTime() ?? 0) > Date.now()]),
      [['bigint out of range', true]],
    );
    // It delays no other charge while it is parked, and is tried again afterwards.
    const again = await running(120_000_000n, 0n);
    assert.deepEqual((await chargeMeters(database.pool, PRICES, { meterMs: 60_000 })).parked, []);
    assert.ok((await charged(database, again.id)) > 0n);
    await grant(poison.orgId, 9_000_000_000_000_000_000n);
    await database.pool.query('update sandbox_meters set parked_until = now() where sandbox_id = $1', [
      poison.id,
    ]);
    await chargeMeters(database.pool, PRICES, { meterMs: 60_000 });
    assert.ok((await charged(database, poison.id)) >= exactCost(SIZE, 240_000_000n));
  });
});
