/** Which instance serves which request, under any order of arrivals, starts, failures and ends. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { propertyRuns } from '@releap/testing/repetitions';
import * as fc from 'fast-check';
import type { RequestEnd } from '../src/functions/version-queue.ts';
import { FINAL, FULL, RETRY, UNTRIED, World } from './support/version-queue-world.ts';

test('whatever happens: no instance is overloaded, the order is kept, and nothing is lost or left', () => {
  const end = fc.constantFrom<RequestEnd>('good', 'good', 'good', 'cancelled', 'broken', 'hung');
  const step = fc.oneof(
    { weight: 6, arbitrary: fc.record({ do: fc.constant('submit' as const), patient: fc.boolean() }) },
    { weight: 5, arbitrary: fc.record({ do: fc.constant('done' as const), at: fc.nat(20), end }) },
    { weight: 4, arbitrary: fc.record({ do: fc.constant('ready' as const), at: fc.nat(20) }) },
    { weight: 2, arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.nat(4_000) }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('cancel' as const), at: fc.nat(20) }) },
    {
      weight: 1,
      arbitrary: fc.record({
        do: fc.constant('fail' as const),
        at: fc.nat(20),
        how: fc.constantFrom(RETRY, FULL, UNTRIED, FINAL),
      }),
    },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('usable' as const), at: fc.nat(20) }) },
    {
      weight: 1,
      arbitrary: fc.constantFrom({ do: 'pressure' as const }, { do: 'supersede' as const }),
    },
  );
  const shape = fc.record({
    concurrency: fc.integer({ min: 1, max: 3 }),
    maxInstances: fc.constantFrom(null, 1, 2, 5),
    graceMs: fc.constantFrom(0, 500, Infinity),
  });
  fc.assert(
    fc.property(shape, fc.array(step, { maxLength: 80, size: 'max' }), (config, steps) => {
      const world = new World(config);
      const submitted: number[] = [];
      const cancelled = new Set<number>();
      const pick = (ids: number[], at: number): number | undefined => ids[at % Math.max(1, ids.length)];
      const running = (): number[] =>
        [...world.instances.values()].flatMap(({ requests }) => [...requests.keys()]);
      for (const one of steps) {
        const ids = [...world.instances.keys()];
        switch (one.do) {
          case 'submit':
            submitted.push(world.submit(one.patient));
            break;
          case 'done': {
            const request = pick(running(), one.at);
            if (request !== undefined) world.done(request, one.end);
            break;
          }
          case 'ready': {
            const id = pick(
              ids.filter((key) => !['ready', 'frozen'].includes(world.instances.get(key)?.state ?? '')),
              one.at,
            );
            if (id !== undefined) world.ready(id);
            break;
          }
          case 'fail': {
            const id = pick(ids, one.at);
            if (id !== undefined) world.fail(one.how, id);
            break;
          }
          case 'cancel': {
            const request = pick([...world.waiting.keys()], one.at);
            if (request === undefined) break;
            cancelled.add(request);
            world.cancel(request);
            break;
          }
          case 'usable': {
            const id = pick(ids, one.at);
            if (id === undefined) break;
            if (!world.unusable.delete(id)) world.unusable.add(id);
            break;
          }
          case 'pass':
            world.pass(one.ms);
            break;
          case 'pressure':
            world.queue.giveUpIdle(world.now);
            break;
          case 'supersede':
            world.queue.supersede(world.now);
        }
      }
      // From now on all starts succeed and all requests end: everything empties by itself.
      world.unusable.clear();
      for (let round = 0; round < 300 && !world.queue.isEmpty; round++) {
        for (const [id, { state }] of world.instances)
          if (state !== 'ready' && state !== 'frozen') world.ready(id);
        for (const request of running()) world.done(request);
        world.pass(1_000);
      }
      assert.ok(world.queue.isEmpty, 'something is left');
      assert.equal(world.instances.size, 0, 'an instance is left');
      const ends = [
        ...world.sent.map(({ request }) => request),
        ...world.refused.keys(),
        ...world.expired.keys(),
        ...cancelled,
      ];
      assert.deepEqual(
        ends.toSorted((a, b) => a - b),
        submitted,
        'each ends once',
      );
    }),
    { numRuns: propertyRuns(3_000) },
  );
});
