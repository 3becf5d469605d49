import assert from 'node:assert/strict';
import { test } from 'node:test';
import { openFresh } from '@releap/testing/postgres';

test('a connection that the server ends as it is handed out ends the one statement, and not the process', async () => {
  await using database = await openFresh();
  const ended = new Error('terminating connection due to administrator command');
  await new Promise<void>((resolve, reject) =>
    database.pool.connect((error, client, release) => {
      if (error !== undefined || client === undefined) return reject(error ?? new Error('no client'));
      // As pg does when both are in one packet: whoever awaits the connection has not continued yet.
      try {
        client.emit('error', ended);
        resolve();
      } catch (thrown) {
        reject(thrown);
      } finally {
        release(true);
      }
    }),
  );
  await assert.rejects(
    database.transaction((on) => on.query('select pg_terminate_backend(pg_backend_pid())')),
  );
  const { rows } = await database.transaction((on) => on.query<{ one: number }>('select 1 as one'));
  assert.deepEqual(rows, [{ one: 1 }]);
});
