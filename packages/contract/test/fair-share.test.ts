/** The rule by which organizations share places. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FairShare, hasShare } from '@releap/contract';
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
      { numRuns: propertyRuns(1000) },
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
