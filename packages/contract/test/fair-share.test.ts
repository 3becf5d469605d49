/** The rule by which organizations share places. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FairShare, hasShare, takeTurns } from '@releap/contract';
import { propertyRuns } from '@releap/testing/repetitions';
import * as fc from 'fast-check';

/** Takes as many as it may. */
function fill<T>(places: FairShare<T>, owner: T): number {
  while (places.mayTake(owner)) places.take(owner);
  return places.of(owner);
}

function copyOf<T>(places: FairShare<T>, most: number): FairShare<T> {
  const copy = new FairShare<T>(most);
  for (const [owner, count] of places.held) for (let one = 0; one < count; one++) copy.take(owner);
  return copy;
}

describe('places that owners share', () => {
  it('give half to one that is alone, and a third to each of two', () => {
    const places = new FairShare<string>(1000);
    assert.equal(fill(places, 'flood'), 500);
    assert.equal(fill(places, 'other'), 250);
    const two = new FairShare<string>(900);
    for (let more = true; more; ) {
      more = false;
      for (const owner of ['one', 'two']) {
        if (!two.mayTake(owner)) continue;
        two.take(owner);
        more = true;
      }
    }
    assert.deepEqual([two.of('one'), two.of('two')], [300, 300]);
  });

  it('give the last one only to an owner that has none, whatever the others do', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 40 }),
        fc.array(fc.tuple(fc.boolean(), fc.integer({ min: 0, max: 4 })), { maxLength: 200 }),
        (most, steps) => {
          const places = new FairShare<number>(most);
          for (const [isTaken, owner] of steps) {
            if (!isTaken) places.release(owner);
            else if (places.mayTake(owner)) {
              if (places.free === 1) assert.equal(places.of(owner), 0);
              places.take(owner);
            }
            assert.equal(
              places.total,
              [...places.held.values()].reduce((sum, own) => sum + own, 0),
            );
            assert.ok(places.total <= most);
            const count = places.mayTakeCount(owner);
            assert.equal(count, fill(copyOf(places, most), owner) - places.of(owner));
            assert.equal(places.mayTake(99), places.free > 0, 'a newcomer gets any that is free');
          }
        },
      ),
      propertyRuns(1000),
    );
  });

  it('are all free again when all were released', () => {
    const places = new FairShare<string>(3);
    places.take('one');
    places.take('one');
    for (let count = 0; count < 4; count++) places.release('one');
    assert.deepEqual([places.free, places.held.size], [3, 0]);
  });

  it('are none without places', () => assert.equal(hasShare(0, 0), false));
});

describe('the turns of owners', () => {
  const order = (waiting: string[], free: number, held: Record<string, number> = {}, share = 1) =>
    takeTurns(waiting, ([owner]) => owner, { held: new Map(Object.entries(held)), free, share });

  it('alternate, whoever came first, and one that has places waits for those that have none', () => {
    assert.deepEqual(order(['a1', 'a2', 'a3', 'a4', 'b1', 'c1'], 6, {}, 10), [
      'a1',
      'b1',
      'c1',
      'a2',
      'a3',
      'a4',
    ]);
    assert.deepEqual(order(['a1', 'a2', 'b1'], 2, { a: 3 }, 10), ['b1', 'a1']);
  });

  it('take no more than there are free, none twice, and serve all owners before one has two', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 0, max: 5 }), { maxLength: 60 }),
        fc.integer({ min: 0, max: 40 }),
        fc.array(fc.integer({ min: 0, max: 5 }), { maxLength: 6 }),
        (owners, free, own) => {
          const waiting = owners.map((owner, index) => ({ owner, index }));
          const held = new Map(own.map((count, owner) => [owner, count]));
          const taken = takeTurns(waiting, (one) => one.owner, { held, free });
          assert.ok(taken.length <= free);
          assert.equal(new Set(taken).size, taken.length);
          for (const owner of new Set(owners)) {
            const mine = taken.filter((one) => one.owner === owner).map(({ index }) => index);
            assert.deepEqual(
              mine,
              mine.toSorted((a, b) => a - b),
              'in their order',
            );
          }
          // One that has none gets a place before any other one gets its second.
          const without = [...new Set(owners)].filter((owner) => (held.get(owner) ?? 0) === 0);
          const served = new Set(taken.map(({ owner }) => owner));
          const missed = without.filter((owner) => !served.has(owner));
          if (missed.length > 0) {
            const counts = new Map(held);
            for (const { owner } of taken) {
              assert.equal(counts.get(owner) ?? 0, 0, 'only those without a place were served');
              counts.set(owner, 1);
            }
          }
        },
      ),
      propertyRuns(1000),
    );
  });
});
