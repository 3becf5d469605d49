import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import type { Database } from '@releap/database';
import { eventually } from '@releap/testing/eventually';
import { openFresh, quiet } from '@releap/testing/postgres';
import { openClusterNotifier, type Changed } from '../src/platform/events/cluster-notifier.ts';

const database = await openFresh();

async function server(on: Database = database) {
  const received: Changed[] = [];
  const seen = { gaps: 0 };
  const serverId = newUuid();
  const notifier = await openClusterNotifier({
    database: on,
    serverId,
    log: quiet,
    onChanged: (changed) => void received.push(...changed),
    onGap: () => void seen.gaps++,
  });
  return { notifier, received, seen, serverId };
}

/** The database, but that statements fail while `broken` says so. */
function unreliable(broken: { now: boolean }): Database {
  const pool = new Proxy(database.pool, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      if (name === 'query' && broken.now) return () => Promise.reject(new Error('the connection broke'));
      return typeof value === 'function' ? (value as () => unknown).bind(target) : value;
    },
  });
  return { ...database, url: database.url, pool };
}

describe('control servers', () => {
  it('send their changes until they are sent', async () => {
    const broken = { now: false };
    const [one, other] = [await server(unreliable(broken)), await server()];
    await one.notifier.heartbeat();
    const id = newUuid();
    broken.now = true;
    one.notifier.publish([[id, null, 3, 'sandbox']]);
    await one.notifier.heartbeat().catch(() => undefined);
    broken.now = false;
    assert.deepEqual(await eventually('it is received', () => other.received.find(([of]) => of === id)), [
      id,
      null,
      3,
      'sandbox',
    ]);
    await one.notifier.close();
    await other.notifier.close();
  });

  it('look for changes themselves when one of them has died, which may not have sent its own', async () => {
    const one = await server();
    const dead = newUuid();
    await database.pool.query('insert into control_servers (id) values ($1)', [dead]);
    await one.notifier.heartbeat();
    assert.equal(one.notifier.hasPeers, true);
    const before = one.seen.gaps;
    await database.pool.query(
      `update control_servers set last_seen_at = now() - interval '1 minute' where id = $1`,
      [dead],
    );
    await one.notifier.heartbeat();
    assert.equal(one.seen.gaps, before + 1);
    await one.notifier.heartbeat();
    assert.equal(one.seen.gaps, before + 1, 'once');
    await one.notifier.close();
  });
});
