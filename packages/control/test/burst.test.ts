/** "burst above the guarantee (burstable mode) is charged aggregated per minute" (Limits). */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { CpuReading } from '@releap/contract';
import * as fc from 'fast-check';
import { inspect, inspectLedger, inspectReading } from '@releap/testing/inspect';
import { openFresh, quiet } from '@releap/testing/postgres';
import { propertyRuns } from '@releap/testing/repetitions';
import { createLifecycle } from '../src/compute/sandboxes/lifecycle.ts';
import { STATE_DEADLINES } from '../src/compute/sandboxes/transitions.ts';
import { createBilling } from '../src/tenancy/billing/billing.ts';
import { createBurstMeter } from '../src/tenancy/billing/burst.ts';
import { BILLING_SETTINGS } from '../src/tenancy/billing/settings.ts';
import { accounts, charged, newOrg, newRunner, newSandbox, PRICES } from './support/billing.ts';

const database = await openFresh();
await newOrg(database);
const runnerId = await newRunner(database);

const SECOND = 1_000_000;
/** Nano-credits of this much burst. */
const cost = (micros: number): bigint => (BigInt(micros) * PRICES.burstCpuSecond) / 1_000_000_000n;

async function setUp(options: Parameters<typeof newSandbox>[2] = {}) {
  const { projectId } = await newOrg(database);
  const vm = await newSandbox(database, projectId, { millicores: 500, vcpus: 2, runnerId, ...options });
  const clock = { now: 0 };
  const meter = createBurstMeter(database, () => clock.now);
  const read = (age: number, cpu: number, incarnation = 'first'): CpuReading => ({
    vm_id: vm,
    incarnation,
    cpu_usec: Math.round(cpu * SECOND),
    age_usec: Math.round(age * SECOND),
  });
  return { vm, meter, clock, read };
}

describe('burst', () => {
  it('is the use above the guarantee over a minute; counting starts at the first reading', async () => {
    const { vm, meter, read } = await setUp();
    meter.take(runnerId, [read(30, 55)]);
    await meter.charge(PRICES);
    assert.equal(await charged(database, vm, 'burst'), 0n, 'starting it was no use of the tenant');
    meter.take(runnerId, [read(60, 100)]);
    await meter.charge(PRICES);
    assert.equal(await charged(database, vm, 'burst'), 0n, 'the minute is not over');
    // 60 s, of which 30 core-seconds are guaranteed; 75 were used.
    meter.take(runnerId, [read(90, 130)]);
    await meter.charge(PRICES);
    assert.equal(await charged(database, vm, 'burst'), cost(45 * SECOND));
    assert.deepEqual(
      (await inspectLedger(database, { sandbox_id: vm })).map(({ kind, note }) => [kind, note]),
      [['burst', '45 core-seconds above the guarantee in 60 s']],
    );
  });

  it('costs nothing within the guarantee, and idle minutes earn nothing for later ones', async () => {
    const { vm, meter, read } = await setUp();
    for (const [age, cpu] of [
      [0, 0],
      [60, 30],
      [120, 30],
      [180, 60],
    ] as const) {
      meter.take(runnerId, [read(age, cpu)]);
      await meter.charge(PRICES);
    }
    assert.equal(await charged(database, vm, 'burst'), 0n);
    meter.take(runnerId, [read(240, 91)]);
    await meter.charge(PRICES);
    assert.equal(await charged(database, vm, 'burst'), cost(SECOND));
  });

  it('of a micro-VM that ended is charged without waiting for the minute', async () => {
    const { vm, meter, clock, read } = await setUp();
    meter.take(runnerId, [read(0, 0)]);
    await meter.charge(PRICES);
    meter.take(runnerId, [read(10, 20)]);
    await meter.charge(PRICES);
    clock.now = 30_000;
    await meter.charge(PRICES);
    assert.equal(await charged(database, vm, 'burst'), cost(15 * SECOND));
  });

  it('of a micro-VM that lives for seconds is charged, although its readings come between two passes', async () => {
    const { vm, meter, clock, read } = await setUp();
    meter.take(runnerId, [read(30, 5)]);
    meter.take(runnerId, [read(39, 23)]);
    await meter.charge(PRICES);
    clock.now += 25_000;
    await meter.charge(PRICES);
    // 9 s, of which 4.5 core-seconds are guaranteed; 18 were used.
    assert.equal(await charged(database, vm, 'burst'), cost(13.5 * SECOND));
  });

  it('of a micro-VM is charged to its end, although the next one of the sandbox starts at once', async () => {
    const { vm, meter, clock, read } = await setUp();
    meter.take(runnerId, [read(30, 5)]);
    await meter.charge(PRICES);
    for (const life of ['second', 'third']) {
      // Stopped before a minute is over, and started again.
      meter.take(runnerId, [read(39, 23, life === 'second' ? 'first' : 'second')]);
      meter.take(runnerId, [read(30, 5, life)]);
      await meter.charge(PRICES);
    }
    meter.take(runnerId, [read(39, 23, 'third')]);
    // Never charged before it ends.
    meter.take(runnerId, [read(30, 5, 'fourth')]);
    meter.take(runnerId, [read(39, 23, 'fourth')]);
    meter.take(runnerId, [read(30, 5, 'fifth')]);
    await meter.charge(PRICES);
    clock.now += 25_000;
    await meter.charge(PRICES);
    assert.equal(await charged(database, vm, 'burst'), cost(4 * 13.5 * SECOND));
  });

  it('starts again with a new incarnation of the micro-VM, whose counters start at zero', async () => {
    const { vm, meter, read } = await setUp();
    for (const [age, cpu, life] of [
      [0, 0, 'first'],
      [60, 60, 'first'],
      [5, 9, 'second'],
      [65, 49, 'second'],
    ] as const) {
      meter.take(runnerId, [read(age, cpu, life)]);
      await meter.charge(PRICES);
    }
    assert.equal(await charged(database, vm, 'burst'), cost(40 * SECOND));
  });

  it('is not charged to a dedicated sandbox, to one of another host, or beyond what its cores can do', async () => {
    const dedicated = await setUp({ mode: 'dedicated', millicores: 1000 });
    const elsewhere = await setUp();
    const wild = await setUp();
    const other = await newRunner(database);
    for (const { meter, read } of [dedicated, wild]) {
      meter.take(runnerId, [read(0, 0)]);
      await meter.charge(PRICES);
      meter.take(runnerId, [read(60, 10_000)]);
      await meter.charge(PRICES);
    }
    elsewhere.meter.take(other, [elsewhere.read(0, 0)]);
    await elsewhere.meter.charge(PRICES);
    elsewhere.meter.take(other, [elsewhere.read(60, 100)]);
    await elsewhere.meter.charge(PRICES);
    assert.equal(await charged(database, dedicated.vm, 'burst'), 0n);
    assert.equal(await charged(database, elsewhere.vm, 'burst'), 0n);
    assert.equal(await charged(database, wild.vm, 'burst'), cost((120 - 30) * SECOND));
  });

  it('of a host that claims centuries is charged for the time since its last reading', async () => {
    const { vm, meter, read } = await setUp();
    meter.take(runnerId, [read(0, 0)]);
    await meter.charge(PRICES);
    meter.take(runnerId, [read(3e9, 6e9)]);
    await meter.charge(PRICES);
    const billed = await charged(database, vm, 'burst');
    // A reading may be a minute older than the charge that stored it.
    assert.ok(billed >= cost(90 * SECOND));
    assert.ok(billed < cost(3_600 * SECOND), `it was charged ${billed}`);
  });

  it('is charged once, however readings are lost, repeated, told to two servers or forgotten by a crash', async () => {
    const step = fc.record({
      seconds: fc.integer({ min: 1, max: 40 }),
      cores: fc.integer({ min: 0, max: 2000 }),
      fate: fc.constantFrom('told', 'told', 'told twice', 'lost', 'told to both', 'crash'),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 30 }), async (steps) => {
        const { vm, read } = await setUp();
        let meters = [createBurstMeter(database, () => 0), createBurstMeter(database, () => 0)];
        let [age, cpu] = [0, 0];
        /** The last readings in the database: the model charges between two of those. */
        for (const { seconds, cores, fate } of steps) {
          age += seconds;
          cpu += (seconds * cores) / 1000;
          const reading = read(age, cpu);
          if (fate === 'lost') continue;
          if (fate === 'crash')
            meters = [createBurstMeter(database, () => 0), createBurstMeter(database, () => 0)];
          const to = fate === 'told to both' ? meters : meters.slice(0, 1);
          for (const meter of to) meter.take(runnerId, [reading]);
          await Promise.all(to.map((meter) => meter.charge(PRICES)));
          if (fate === 'told twice') {
            meters[0]?.take(runnerId, [reading]);
            await meters[0]?.charge(PRICES);
          }
        }
        // Never less than over the whole time at once, never more than over each second by itself.
        const micros = steps.reduce((sum, one) => sum + one.seconds * Math.max(0, one.cores - 500) * 1000, 0);
        assert.ok((await charged(database, vm, 'burst')) <= cost(micros) + 1n);
        assert.ok(Number((await inspectReading(database, vm))?.age_usec ?? 0) <= age * SECOND);
        for (const { balance, sum } of await accounts(database)) assert.equal(balance, sum);
      }),
      { numRuns: propertyRuns(25) },
    );
  });
});

it('an organization that was charged beyond its limit is enforced although burst cannot be charged', async () => {
  const { pool } = database;
  const { projectId } = await newOrg(database);
  const id = await newSandbox(database, projectId, { runnerId });
  await pool.query(
    `update sandbox_meters set metered_until = metered_until - interval '2 hours' where sandbox_id = $1`,
    [id],
  );
  const lifecycle = createLifecycle({ database, deadlines: STATE_DEADLINES, onMoved: () => undefined });
  const settings = { ...BILLING_SETTINGS, mode: 'enforce', prices: PRICES, overdraftLimit: 0n } as const;
  const billing = createBilling({ database, lifecycle, settings, log: quiet });
  billing.readings(runnerId, [{ vm_id: id, incarnation: 'first', cpu_usec: 1, age_usec: 1 }]);

  await pool.query('alter table cpu_readings rename to cpu_readings_away');
  await assert.rejects(billing.chargeBursts(), /cpu_readings/);
  assert.equal(await charged(database, id), 0n);
  assert.equal((await inspect(database, { uuid: id })).status, 'running');
  await billing.chargeMeters();
  assert.ok((await charged(database, id)) > 0n);
  assert.equal((await inspect(database, { uuid: id })).desired, 'deleted');

  await pool.query('alter table cpu_readings_away rename to cpu_readings');
  await billing.chargeBursts();
});
