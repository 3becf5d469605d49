/** The clock of a machine is set, or the machine is suspended: neither counts as time of use or of waiting. */
import assert from 'node:assert/strict';
import { describe, it, mock } from 'node:test';
import { openFresh } from '@releap/testing/postgres';
import { chargeMeters } from '../src/tenancy/billing/charge-meters.ts';
import { createClockSteps } from '../src/tenancy/billing/clock-steps.ts';
import { charged, exactCost, newOrg, newRunner, newSandbox, PRICES } from './support/billing.ts';
import { create, quiet, startWorld, until, waitFor, host } from '@releap/testing/world';

const HOURS_MS = 3 * 3_600_000;
const SIZE = { millicores: 125, memMib: 1024, gpus: 0, spot: false };
/** What passes by itself while a test runs. */
const SLACK_MICROS = 120_000_000n;

describe('when the clock is set', () => {
  for (const [how, stepMs] of [
    ['forward, or the machine was suspended', HOURS_MS],
    ['back', -HOURS_MS],
  ] as const) {
    it(`${how}, sandboxes are charged for the time that has passed, by however many servers`, async () => {
      await using database = await openFresh();
      const { projectId } = await newOrg(database);
      const [running, stopped] = [
        await newSandbox(database, projectId),
        await newSandbox(database, projectId),
      ];
      const passed = { offset: 0 };
      const servers = [1, 2].map(() =>
        createClockSteps(database, quiet, () => performance.now() - passed.offset),
      );
      for (const server of servers) await server.look();
      // To the servers it is as if the database's clock had moved, and to the meters it has.
      passed.offset = stepMs;
      const now = (): Date => new Date(Date.now() + stepMs);
      if (stepMs > 0) {
        await database.pool.query('update sandbox_meters set closed_at = $2 where sandbox_id = $1', [
          stopped,
          now(),
        ]);
      }
      for (const server of servers) await server.look();
      for (const server of servers) await server.look();
      await newRunner(database);
      await database.pool.query('update runners set last_seen_at = $1', [new Date(now().getTime() + 60_000)]);
      await chargeMeters(database.pool, PRICES, { meterMs: 60_000, now: new Date(now().getTime() + 60_000) });
      const cost = await charged(database, running);
      assert.ok(cost <= exactCost(SIZE, 60_000_000n + SLACK_MICROS), `${cost}`);
      assert.ok(cost >= exactCost(SIZE, 60_000_000n), `${cost}`);
      if (stepMs > 0) assert.ok((await charged(database, stopped)) <= exactCost(SIZE, SLACK_MICROS));
    });
  }

  it('back by hours, sandboxes are placed and hosts are looked after all the same', async () => {
    await using world = await startWorld({
      limits: {
        sweepMs: 50,
        overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' },
        // The one that waits must not get a reservation before the last one is placed.
        reserveAfterMs: 600_000,
      },
    });
    const runner = await world.runner({ facts: { cores: 2 } });
    const first = await create(world.call, world, { cpu: 1 });
    await waitFor(world.call, first.id, 'running');
    // Waits for capacity that no host has, so that every sweep looks for some.
    await create(world.call, world, { cpu: 2 });
    const seen = async (): Promise<number> => Date.parse((await host(world, runner.id))?.last_seen_at ?? '');
    const { now } = Date;
    const clock = mock.method(Date, 'now', () => now() - HOURS_MS);
    try {
      const before = await seen();
      await until(async () => (await seen()) > before);
      const small = await create(world.call, world, { cpu: 1 });
      await waitFor(world.call, small.id, 'running');
    } finally {
      clock.mock.restore();
    }
  });
});
