import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { it } from 'node:test';
import type { Database } from '@releap/database';
import { openFresh } from '@releap/testing/postgres';
import { pino } from 'pino';
import { createBuildQueue } from '../src/images/build-queue.ts';
import { ensureBuiltinImages } from '../src/images/images.ts';
import { CONTROL_LIMITS } from '../src/limits.ts';

const RUNNERS = 50;

/** A database that counts the statements of its pool. */
function counting(database: Database): { database: Database; statements: string[] } {
  const statements: string[] = [];
  const pool = new Proxy(database.pool, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]): unknown => {
        if (name === 'query') statements.push((args[0] as { name?: string }).name ?? String(args[0]));
        return Reflect.apply(value, target, args);
      };
    },
  });
  return { database: { ...database, pool }, statements };
}

it('a sweep runs as many statements for fifty runners as for one, while nothing waits and while builds do', async () => {
  await using database = await openFresh();
  const counted = counting(database);
  const builders = Array.from({ length: RUNNERS }, () => ({
    runnerId: randomUUID(),
    region: 'here',
    ready: true,
    kinds: new Set(['build']),
  }));
  const leased: (string | null)[] = [];
  const queue = createBuildQueue({
    database: counted.database,
    credentials: {
      needsPullCredentials: () => false,
      withPullCredentials: (these) => Promise.resolve([...these]),
    },
    limits: CONTROL_LIMITS,
    log: pino({ enabled: false }),
    builders: () => builders,
    onChanged: (resources) => leased.push(...resources.map(({ runner_id }) => runner_id)),
  });
  await queue.sweep();
  await queue.idle();
  assert.deepEqual(counted.statements, ['build-overdue', 'builds-waiting']);
  counted.statements.length = 0;
  await ensureBuiltinImages(
    database.pool,
    Array.from({ length: 20 }, (_, n) => `image-${n}`),
  );
  await queue.sweep();
  await queue.idle();
  assert.deepEqual(counted.statements, ['build-overdue', 'builds-waiting', 'builds-busy', 'builds-lease']);
  assert.equal(leased.length, 20);
  assert.equal(new Set(leased).size, 20, 'each on the runner with the fewest');
  await queue.close();
});
