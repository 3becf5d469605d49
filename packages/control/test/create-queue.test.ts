/** "create queue at capacity" (POST /vms, 429): the bound of what waits for a host. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import * as fc from 'fast-check';
import { openFresh } from '@releap/testing/postgres';
import { CreateQueue, type QueuePlace } from '../src/compute/scheduler/create-queue.ts';
import { newOrg, newSandbox } from './support/billing.ts';

const MOST = 5;
const ROUNDS = 30;
/** One organization may have every place. */
const ALL = { most: MOST, share: MOST };
const ORG = newUuid();

const database = await openFresh();
const { projectId } = await newOrg(database);

/** As a create does. @returns whether it was admitted */
async function create(queue: CreateQueue): Promise<boolean> {
  const id = newUuid();
  const place = queue.admit(id, ORG);
  if ('refused' in place) return false;
  await newSandbox(database, projectId, { id, status: 'pending' });
  place.taken();
  return true;
}

const empty = async (): Promise<void> => {
  await database.pool.query('delete from sandboxes');
};

/** Refreshes the queue continuously until it is disposed of. */
function looking(queue: CreateQueue): AsyncDisposable {
  const over = new AbortController();
  const work = (async () => {
    while (!over.signal.aborted) await queue.refresh();
  })();
  return {
    async [Symbol.asyncDispose]() {
      over.abort();
      await work;
    },
  };
}

describe('the queue of creates', () => {
  it('admits as many as may wait and no more, also while it is refreshed', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      await empty();
      const queue = new CreateQueue(database, ALL);
      await using _looking = looking(queue);
      for (let n = 0; n < MOST; n++) assert.equal(await create(queue), true, `number ${n} of ${MOST}`);
      assert.equal(await create(queue), false);
      assert.equal(queue.waiting, MOST);
    }
  });

  it('never admits more when they arrive concurrently', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      await empty();
      const queue = new CreateQueue(database, ALL);
      await using _looking = looking(queue);
      const taken = await Promise.all(Array.from({ length: 3 * MOST }, () => create(queue)));
      assert.ok(taken.filter(Boolean).length <= MOST);
    }
  });

  it('has a place again for each sandbox that got a host, and for one that was withdrawn', async () => {
    await empty();
    const queue = new CreateQueue(database, ALL);
    for (let n = 0; n < MOST - 1; n++) await create(queue);
    const last = queue.admit(newUuid(), ORG);
    assert.ok('withdraw' in last);
    assert.ok('refused' in queue.admit(newUuid(), ORG));
    last.withdraw();
    assert.equal(await create(queue), true);
    assert.ok('refused' in queue.admit(newUuid(), ORG));
    await database.pool.query(`update sandboxes set status = 'assigned'`);
    await queue.refresh();
    assert.equal(queue.waiting, 0);
    assert.equal(await create(queue), true);
  });
});

describe('a round that waits for creates that are being inserted', () => {
  const HOUR_MS = 3_600_000;
  const isPending = Symbol('pending');
  const now = (promise: Promise<void>): Promise<unknown> =>
    Promise.race([promise, Promise.resolve(isPending)]);

  it('begins at once when there are none, and else with the last of them, inserted or not', async () => {
    const queue = new CreateQueue(database, ALL);
    await queue.untilInserted(HOUR_MS);
    const places = [queue.admit(newUuid(), ORG), queue.admit(newUuid(), ORG)].map((place) => {
      assert.ok('taken' in place);
      return place;
    });
    const joined = queue.untilInserted(HOUR_MS);
    places[0]?.taken();
    assert.equal(await now(joined), isPending);
    places[1]?.withdraw();
    await joined;
    await queue.untilInserted(HOUR_MS);
  });

  it('begins without one that takes too long', async () => {
    const queue = new CreateQueue(database, ALL);
    assert.ok('taken' in queue.admit(newUuid(), ORG));
    await queue.untilInserted(1);
  });
});

describe('the share of the create queue that an organization has', () => {
  it('is half of the queue for one alone, and the free places for a newcomer', async () => {
    await empty();
    const queue = new CreateQueue(database, { most: 1000, share: 1 });
    const [greedy, other] = [newUuid(), newUuid()];
    const admitted = (org: string): number => {
      for (let n = 0; ; n++) if ('refused' in queue.admit(newUuid(), org)) return n;
    };
    assert.equal(admitted(greedy), 500);
    const refusal = queue.admit(newUuid(), greedy);
    assert.ok('refused' in refusal);
    assert.match(
      refusal.refused,
      /^500 sandboxes of this organization .* fair share of the 1000 .*\(500 do\)$/,
    );
    assert.equal(admitted(other), 250);
    assert.equal(admitted(newUuid()), 125);
  });

  it('always leaves a place for an organization that has none waiting, whatever the order of arrival', () => {
    const events = fc.array(
      fc.record({ org: fc.integer({ min: 0, max: 4 }), leave: fc.boolean(), pick: fc.nat() }),
      { maxLength: 400 },
    );
    fc.assert(
      fc.property(events, fc.constantFrom(0.25, 0.5, 1, 2), (list, share) => {
        const most = 40;
        const queue = new CreateQueue(database, { most, share });
        const places: { org: string; place: QueuePlace }[] = [];
        for (const { org, leave, pick } of list) {
          if (leave && places.length > 0) {
            places.splice(pick % places.length, 1)[0]?.place.withdraw();
            continue;
          }
          const name = `org ${org}`;
          const place = queue.admit(newUuid(), name);
          const own = places.filter((one) => one.org === name).length;
          if ('refused' in place) assert.ok(own > 0 || places.length === most);
          else {
            // Model: when it was admitted, it had less than its share of the free places.
            assert.ok(own < share * (most - places.length));
            places.push({ org: name, place });
          }
          assert.equal(queue.waiting, places.length);
        }
        // However greedy five are, a sixth finds a place: each leaves at least half of what it found.
        if (share <= 1) assert.ok('taken' in queue.admit(newUuid(), 'newcomer'));
      }),
    );
  });
});
