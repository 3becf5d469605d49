/** "create queue at capacity" (POST /vms, 429): the bound of what waits for a host. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import type { Database } from '@releap/database';
import { openFresh } from '@releap/testing/postgres';
import { CreateQueue } from '../src/scheduler/create-queue.ts';
import { newOrg, newSandbox } from './support/billing.ts';

const MOST = 5;
const ROUNDS = 30;

let database: Database;
let projectId: string;
before(async () => {
  database = await openFresh();
  ({ projectId } = await newOrg(database));
});
after(async () => database.close());

/** As a create does. @returns whether it was taken in */
async function create(queue: CreateQueue): Promise<boolean> {
  const id = newUuid();
  const place = queue.admit(id);
  if (place === undefined) return false;
  await newSandbox(database, projectId, { id, status: 'pending' });
  place.taken();
  return true;
}

const empty = async (): Promise<void> => {
  await database.pool.query('delete from sandboxes');
};

/** Looks all the time until it is disposed of. */
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
  it('takes in as many as may wait and no more, also while it is looked at', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      await empty();
      const queue = new CreateQueue(database, MOST);
      await using _looking = looking(queue);
      for (let n = 0; n < MOST; n++) assert.equal(await create(queue), true, `number ${n} of ${MOST}`);
      assert.equal(await create(queue), false);
      assert.equal(queue.waiting, MOST);
    }
  });

  it('never takes in more when they come at once', async () => {
    for (let round = 0; round < ROUNDS; round++) {
      await empty();
      const queue = new CreateQueue(database, MOST);
      await using _looking = looking(queue);
      const taken = await Promise.all(Array.from({ length: 3 * MOST }, () => create(queue)));
      assert.ok(taken.filter(Boolean).length <= MOST);
    }
  });

  it('has room again for those that got a host, and for one that was withdrawn', async () => {
    await empty();
    const queue = new CreateQueue(database, MOST);
    for (let n = 0; n < MOST - 1; n++) await create(queue);
    const last = queue.admit(newUuid());
    assert.ok(last !== undefined);
    assert.equal(queue.admit(newUuid()), undefined);
    last.withdraw();
    assert.equal(await create(queue), true);
    assert.equal(queue.admit(newUuid()), undefined);
    await database.pool.query(`update sandboxes set status = 'assigned'`);
    await queue.refresh();
    assert.equal(queue.waiting, 0);
    assert.equal(await create(queue), true);
  });
});
