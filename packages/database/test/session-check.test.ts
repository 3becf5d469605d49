import assert from 'node:assert/strict';
import { it } from 'node:test';
import { startPgBouncer } from '@releap/testing/pgbouncer';
import { freshDatabase, quiet } from '@releap/testing/postgres';
import { assertOwnSession, PoolerError, prepareDatabase } from '../src/index.ts';

const IGNORED = 'extra_float_digits,statement_timeout,lock_timeout,idle_in_transaction_session_timeout';

it('PostgreSQL itself gives each connection a session of its own', async () => {
  await assertOwnSession(await freshDatabase());
});

it('a pooler is refused with the reason and what to do, however it is configured', async () => {
  const url = await freshDatabase();
  for (const [settings, expected] of [
    [{ pool_mode: 'transaction' }, /unsupported startup parameter: statement_timeout/],
    [{ pool_mode: 'transaction', ignore_startup_parameters: IGNORED }, /it ignores start-up parameters/],
    // Statements would have no time limit.
    [{ pool_mode: 'session', ignore_startup_parameters: IGNORED }, /it ignores start-up parameters/],
  ] as const) {
    await using pooler = await startPgBouncer(url, settings);
    await assert.rejects(
      prepareDatabase({ url: pooler.url, log: quiet }),
      (error) =>
        error instanceof PoolerError &&
        expected.test(error.message) &&
        /name PostgreSQL itself in DATABASE_URL/.test(error.message),
    );
  }
});

it('a pooler that keeps start-up parameters is refused only when it shares its sessions', async () => {
  const url = await freshDatabase();
  const mark = 1_234_567;
  const start = (settings: Record<string, string>) =>
    startPgBouncer(
      url,
      { ignore_startup_parameters: IGNORED, ...settings },
      `set statement_timeout = ${mark}`,
    );
  await using shared = await start({ pool_mode: 'transaction' });
  await assert.rejects(assertOwnSession(shared.url, mark), /\(in transaction mode\)/);
  await using own = await start({ pool_mode: 'session' });
  await assertOwnSession(own.url, mark);
});
