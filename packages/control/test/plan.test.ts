/** A placement round: order, reservations for those that have waited for long, and what may be placed beside them. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FACTS } from '@releap/testing/world';
import * as fc from 'fast-check';
import { planRound, type PendingRequest } from '../src/compute/scheduler/plan.ts';
import { allocation, fits, free, plus, type Host, type Need } from '../src/compute/scheduler/placement.ts';

const overcommit = { cpu: 1, mem: 1, disk: 1, tier: 'spot' } as const;
const RESERVE_AFTER_MS = 10_000;
const options = { overcommit, reserveAfterMs: RESERVE_AFTER_MS };
const CORES = 16;
const host = (id: string, cpu = 0): Host => ({
  id,
  region: 'here',
  ready: true,
  draining: false,
  used: { cpu, mem_mib: 0, disk_mib: 0, gpus: 0 },
  facts: { ...FACTS, cores: CORES, mem_mib: 100_000, disk_mib: 100_000, gpus: 1 },
});
const need = (extra: Partial<Need> = {}): Need => ({
  region: 'here',
  arch: 'amd64',
  requiredRunnerId: null,
  cpu: 1,
  mem_mib: 1,
  disk_mib: 1,
  gpus: 0,
  overcommitted: false,
  ...extra,
});
const request = (
  id: string,
  extra: Partial<Need> = {},
  rest: Partial<PendingRequest> = {},
): PendingRequest => ({
  id,
  need: need(extra),
  spot: false,
  waitedMs: 0,
  reservedRunnerId: null,
  ...rest,
});
const OLD = { waitedMs: RESERVE_AFTER_MS };

describe('a placement round', () => {
  it('places sandboxes that fit behind a large request that has only just arrived', () => {
    const plan = planRound([request('large', { cpu: 16 }), request('small')], [host('a', 8)], options);
    assert.deepEqual(plan.place, [{ id: 'small', runnerId: 'a' }]);
    assert.deepEqual(plan.reservations, []);
  });

  it('reserves one host for the first that has waited for long, and others go elsewhere', () => {
    const pending = [
      request('large', { cpu: 16 }, OLD),
      request('also large', { cpu: 16 }, OLD),
      ...['s1', 's2', 's3'].map((id) => request(id)),
    ];
    const plan = planRound(pending, [host('a', 8), host('b', 14)], options);
    assert.deepEqual(plan.reservations, [{ region: 'here', id: 'large', runnerId: 'a' }]);
    assert.deepEqual(plan.place, [
      { id: 's1', runnerId: 'b' },
      { id: 's2', runnerId: 'b' },
    ]);
  });

  it('keeps to the host that was reserved before, also when another lacks less now', () => {
    const pending = [request('large', { cpu: 16 }, { ...OLD, reservedRunnerId: 'b' }), request('small')];
    const plan = planRound(pending, [host('a', 4), host('b', 8)], options);
    assert.deepEqual(plan.reservations, [{ region: 'here', id: 'large', runnerId: 'b' }]);
    assert.deepEqual(plan.place, [{ id: 'small', runnerId: 'a' }]);
  });

  it('backfills a reserved host with sandboxes that use nothing that the reservation needs', () => {
    const waitsForGpu = request('gpu', { cpu: 4, gpus: 1 }, OLD);
    const busy = { ...host('a'), used: { cpu: 8, mem_mib: 0, disk_mib: 0, gpus: 1 } };
    const small = ['s1', 's2', 's3', 's4', 's5'].map((id) => request(id));
    const plan = planRound([waitsForGpu, ...small], [busy], options);
    // Four of its eight free cores are for the one that waits for the GPU.
    assert.deepEqual(
      plan.place.map((one) => one.id),
      ['s1', 's2', 's3', 's4'],
    );
  });

  it('leaves other regions alone', () => {
    const there = { ...host('there', 8), region: 'there' };
    const plan = planRound(
      [request('large', { cpu: 16 }, OLD), request('small', { region: 'there' })],
      [host('a', 8), there],
      options,
    );
    assert.deepEqual(plan.place, [{ id: 'small', runnerId: 'there' }]);
  });
});

/**
 * A fleet under a stream of small creates that always find something to take, with one large request. Time goes in
 * rounds of a second; each placed request ends after its own number of rounds.
 */
function simulate(
  small: readonly { cpu: number; rounds: number }[],
  before: readonly { host: number; cpu: number; rounds: number }[],
): { placedAt: number; drainedAt: number } {
  const hosts = [host('h0'), host('h1')];
  const running: { host: Host; cpu: number; until: number }[] = [];
  const start = (on: Host, cpu: number, until: number): void => {
    on.used = plus(on.used, allocation(need({ cpu }), overcommit));
    running.push({ host: on, cpu, until });
  };
  for (const one of before) {
    const on = hosts[one.host];
    if (on !== undefined && fits(need({ cpu: one.cpu }), free(on))) start(on, one.cpu, one.rounds);
  }
  const waiting: { id: number; cpu: number; rounds: number }[] = [];
  let reserved: string | null = null;
  let drainedAt = Infinity;
  for (let round = 0; round < 500; round++) {
    for (const one of running.splice(0)) {
      if (one.until > round) running.push(one);
      else one.host.used = plus(one.host.used, allocation(need({ cpu: one.cpu }), overcommit), -1);
    }
    const next = small[round % small.length];
    if (next !== undefined) waiting.push(...[0, 1, 2, 3].map((n) => ({ ...next, id: round * 4 + n })));
    const pending = [
      request('large', { cpu: CORES }, { waitedMs: round * 1000, reservedRunnerId: reserved }),
      ...waiting.map((one) => request(String(one.id), { cpu: one.cpu })),
    ];
    const plan = planRound(
      pending,
      hosts.map((one) => ({ ...one })),
      options,
    );
    for (const { id, runnerId } of plan.place) {
      if (id === 'large') return { placedAt: round, drainedAt };
      const index = waiting.findIndex((one) => String(one.id) === id);
      const [one] = waiting.splice(index, 1);
      const on = hosts.find((each) => each.id === runnerId);
      if (one !== undefined && on !== undefined) start(on, one.cpu, round + one.rounds);
    }
    const [reservation] = plan.reservations;
    if (reservation !== undefined && reserved === null) {
      reserved = reservation.runnerId;
      drainedAt = Math.max(
        round,
        ...running.filter((one) => one.host.id === reserved).map((one) => one.until),
      );
    }
    if (reservation !== undefined) assert.equal(reservation.runnerId, reserved);
  }
  return { placedAt: Infinity, drainedAt };
}

describe('a large request under a steady stream of small ones', () => {
  const small = fc.array(
    fc.record({ cpu: fc.constantFrom(1, 2, 4), rounds: fc.integer({ min: 1, max: 30 }) }),
    { minLength: 1, maxLength: 20 },
  );
  const before = fc.array(
    fc.record({
      host: fc.constantFrom(0, 1),
      cpu: fc.constantFrom(1, 4, 8),
      rounds: fc.integer({ min: 1, max: 60 }),
    }),
    { maxLength: 8 },
  );

  it('is placed as soon as what ran on its reserved host has ended: nothing that came later delays it', () => {
    fc.assert(
      fc.property(small, before, (stream, running) => {
        const { placedAt, drainedAt } = simulate(stream, running);
        assert.ok(
          placedAt <= Math.max(drainedAt, 11),
          `placed in round ${placedAt}, drained in ${drainedAt}`,
        );
      }),
    );
  });
});
