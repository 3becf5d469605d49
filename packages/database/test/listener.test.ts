import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { it } from 'node:test';
import { listen } from '../src/index.ts';
import { until } from '@releap/testing/eventually';
import { openFresh, quiet } from '@releap/testing/postgres';

it('a listener receives notifications, and reconnects by itself after its connection was killed', async () => {
  await using database = await openFresh();
  const heard = new EventEmitter();
  await using _listener = await listen({
    url: database.url,
    channel: 'releap-test',
    log: quiet,
    onMessage: (payload) => heard.emit('message', payload),
    onReconnect: () => heard.emit('connected'),
  });
  const first = once(heard, 'message');
  await database.pool.query(`select pg_notify('releap-test', 'one')`);
  assert.deepEqual(await first, ['one']);

  const again = once(heard, 'connected');
  await database.pool.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name = 'releap-listen'`,
  );
  await again;
  const second = once(heard, 'message');
  await database.pool.query(`select pg_notify('releap-test', 'two')`);
  assert.deepEqual(await second, ['two']);
});

it('a listener whose connection is half-open notices it, and connects again', async () => {
  await using database = await openFresh();
  const heard = new EventEmitter();
  let connections = 0;
  await using _listener = await listen({
    url: database.url,
    channel: 'releap-silent',
    log: quiet,
    onMessage: (payload) => heard.emit('message', payload),
    onReconnect: () => {
      connections += 1;
      heard.emit('connected');
    },
    probeMs: 100,
  });
  let pid = 0;
  await until(async () => {
    const before = connections;
    const { rows } = await database.pool.query<{ pid: number }>(
      `select pid from pg_stat_activity where application_name = 'releap-listen' and datname = current_database()`,
    );
    // It connects again by itself when the machine stalled for longer than a probe may take.
    if (connections === before && rows.length === 1) pid = rows[0]?.pid ?? 0;
    return pid > 0;
  });
  const again = once(heard, 'connected');
  // Its peer answers nothing any more, and the connection stays open.
  process.kill(pid, 'SIGSTOP');
  try {
    await again;
    const message = once(heard, 'message');
    await database.pool.query(`select pg_notify('releap-silent', 'back')`);
    assert.deepEqual(await message, ['back']);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
});
