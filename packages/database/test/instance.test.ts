import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from 'pg';
import { pino } from 'pino';
import { debianBinaries, embeddedBinaries, makeReadyCopy } from '../src/instance/binaries.ts';
import { lockFile, startPostgres, type PostgresInstance } from '../src/index.ts';
import { startTestPostgres } from '@releap/testing/postgres-instance';

const log = pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });
const STARTER = fileURLToPath(new URL('support/start-and-wait.ts', import.meta.url));

/** mkdtemp makes 0700: everything below is closed to the uid that the server runs as. */
async function closedFolder(): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-instance-'));
  after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

async function query<T extends Record<string, unknown>>(pg: PostgresInstance, sql: string): Promise<T[]> {
  const client = new Client(pg.connection);
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<T>(sql)).rows;
  } finally {
    await client.end();
  }
}

/** Another process that starts the instance, says so with the server's pid, and lives until it is killed. */
async function starter(dir: string): Promise<{ postmaster: number; kill(): Promise<void> }> {
  const child = spawn(process.execPath, [STARTER, dir], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const lines = createInterface({ input: child.stdout });
  const [first] = (await Promise.race([once(lines, 'line'), exited.then(() => ['ended'])])) as [string];
  assert.match(first, /^\d+$/, `the starter said ${first}`);
  return {
    postmaster: Number(first),
    async kill() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}

/** A dead process that has not been reaped yet is dead. */
async function alive(pid: number): Promise<boolean> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => 'State:\tX');
  return !/^State:\s+[ZX]/m.test(status);
}

describe('the private PostgreSQL', () => {
  test('runs below folders that its user cannot enter, on a socket only, and keeps data over a restart', async () => {
    const root = await closedFolder();
    const dir = path.join(root, 'postgres');
    {
      await using pg = await startPostgres({ dir, log });
      await query(pg, 'create table kept (n int)');
      await query(pg, 'insert into kept values (1)');
      const [shown] = await query<{ fsync: string; sums: string; encoding: string; addresses: string }>(
        pg,
        `select current_setting('fsync') fsync, current_setting('data_checksums') sums,
                current_setting('server_encoding') encoding, current_setting('listen_addresses') addresses`,
      );
      assert.deepEqual(shown, { fsync: 'on', sums: 'on', encoding: 'UTF8', addresses: '' });
      if (process.getuid?.() === 0) {
        const status = await readFile(`/proc/${pg.pid}/status`, 'utf8');
        assert.doesNotMatch(status, /^Uid:\s+0\b/m);
        assert.match(status, /^CapEff:\s+0+$/m);
      }
      assert.equal((await stat(path.join(dir, 'socket'))).mode & 0o777, 0o700);
    }
    await using pg = await startPostgres({ dir, log });
    assert.deepEqual(await query(pg, 'select n from kept'), [{ n: 1 }]);
    const mounts = await readFile('/proc/self/mountinfo', 'utf8');
    assert.ok(!mounts.includes(path.dirname(dir)), 'its mounts stay its own');
  });

  test('loses nothing that was acknowledged when it is killed in the middle of writes', async () => {
    const dir = path.join(await closedFolder(), 'postgres');
    let acknowledged = 0;
    for (let round = 0; round < 4; round++) {
      await using pg = await startPostgres({ dir, log });
      await query(pg, 'create table if not exists ledger (n int primary key)');
      const [found] = await query<{ count: number; top: number }>(
        pg,
        'select count(*)::int count, coalesce(max(n), 0) top from ledger',
      );
      assert.ok(
        found && found.top >= acknowledged,
        `row ${acknowledged} was acknowledged, ${found?.top} is the last`,
      );
      assert.equal(found.count, found.top, 'no row in between is missing');
      let next = found.top;
      const client = new Client(pg.connection);
      client.on('error', () => undefined);
      await client.connect();
      const writing = (async () => {
        for (;;) {
          next += 1;
          await client.query('insert into ledger values ($1)', [next]);
          acknowledged = next;
          if (acknowledged - found.top === 50 + round * 13) process.kill(pg.pid, 'SIGKILL');
        }
      })();
      await assert.rejects(writing);
      await client.end().catch(() => undefined);
      assert.match(await pg.exited, /SIGKILL/);
    }
    assert.ok(acknowledged >= 200);
  });

  test('is refused to a second process, with the pid of the first', async () => {
    const dir = path.join(await closedFolder(), 'postgres');
    await using pg = await startPostgres({ dir, log });
    await assert.rejects(
      startPostgres({ dir, log }),
      new RegExp(`belongs to another server.*process ${process.pid}`),
    );
    assert.deepEqual(await query(pg, 'select 1 one'), [{ one: 1 }]);
  });

  test('ends with the process that started it, and the next one gets the folder', async () => {
    const dir = path.join(await closedFolder(), 'postgres');
    const first = await starter(dir);
    await first.kill();
    // Straight away: the old server may still be shutting down.
    await using pg = await startPostgres({ dir, log });
    assert.equal(await alive(first.postmaster), false);
    assert.notEqual(pg.pid, first.postmaster);
  });

  test('waits for worker processes that a killed server left, rather than writing beside them', async () => {
    const dir = path.join(await closedFolder(), 'postgres');
    const first = await startPostgres({ dir, log });
    const client = new Client(first.connection);
    client.on('error', () => undefined);
    await client.connect();
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() pid');
    const backend = rows[0]?.pid;
    assert.ok(backend);
    process.kill(backend, 'SIGSTOP');
    process.kill(first.pid, 'SIGKILL');
    await first.exited;
    await first.stop();
    const second = startPostgres({ dir, log });
    const early = await Promise.race([
      second.then(() => 'started'),
      new Promise((done) => setTimeout(done, 1000, 'waits')),
    ]);
    process.kill(backend, 'SIGKILL');
    await using pg = await second;
    assert.equal(early, 'waits');
    assert.deepEqual(await query(pg, 'select 1 one'), [{ one: 1 }]);
    await client.end().catch(() => undefined);
  });

  test('starts although its lock file names a live process that is something else', async () => {
    const dir = path.join(await closedFolder(), 'postgres');
    await (await startPostgres({ dir, log })).stop();
    await using other = await startTestPostgres();
    assert.ok(other);
    const [otherPid] = await livePostmasters(dir);
    await writeFile(path.join(dir, 'data', 'postmaster.pid'), `${otherPid ?? process.pid}\n/nowhere\n`, {
      mode: 0o644,
    });
    await using pg = await startPostgres({ dir, log });
    assert.deepEqual(await query(pg, 'select 1 one'), [{ one: 1 }]);
  });

  test('is reachable although its folder has a path too long for a socket, and leaves no link behind', async () => {
    const dir = path.join(await closedFolder(), 'x'.repeat(120), 'postgres');
    const pg = await startPostgres({ dir, log });
    assert.deepEqual(await query(pg, 'select 1 one'), [{ one: 1 }]);
    const link = pg.connection.host;
    assert.ok(link.length < 60);
    await pg.stop();
    await assert.rejects(stat(link), { code: 'ENOENT' });
  });

  test("starts with Debian's PostgreSQL on a folder that one has written", async (t) => {
    const [debian] = await debianBinaries();
    if (debian === undefined) return t.skip("Debian's package postgresql is not installed");
    const dir = path.join(await closedFolder(), 'postgres');
    await (await startPostgres({ dir, log, binaries: debian })).stop();
    await using pg = await startPostgres({ dir, log });
    assert.equal(pg.version, debian.version);
    assert.deepEqual(await query(pg, 'select 1 one'), [{ one: 1 }]);
  });

  test('says which PostgreSQL a folder needs when that one is not installed', async () => {
    const dir = path.join(await closedFolder(), 'postgres');
    await mkdir(path.join(dir, 'data'), { recursive: true });
    await writeFile(path.join(dir, 'data', 'PG_VERSION'), '11\n');
    await assert.rejects(
      startPostgres({ dir, log }),
      /PostgreSQL 11, which is not installed.*postgresql-11/s,
    );
  });

  test('runs from a complete copy when the links of the npm package are missing', async () => {
    const cache = await closedFolder();
    const packaged = await embeddedBinaries(cache);
    if (packaged?.root === undefined) return;
    const copy = path.join(cache, `postgresql-${packaged.version}`);
    // Where the package's install script has run, it is complete and nothing was copied so far.
    if (packaged.root !== copy) {
      assert.deepEqual(await readdir(cache), []);
      assert.equal(await makeReadyCopy(packaged.root, packaged.version, cache), copy);
    }
    await using pg = await startPostgres({
      dir: path.join(await closedFolder(), 'postgres'),
      log,
      binaries: { ...packaged, root: copy, bin: path.join(copy, 'bin') },
    });
    assert.deepEqual(await query(pg, 'select 1 one'), [{ one: 1 }]);
  });
});

async function livePostmasters(except: string): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const line = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    if (line.includes('bin/postgres\0-D\0') && !line.includes(except)) found.push(Number(name));
  }
  return found;
}

test('a file lock ends with the process that holds it, and has its pid for others', async () => {
  const file = path.join(await closedFolder(), 'lock');
  const first = await lockFile(file, 'the first');
  assert.ok('release' in first);
  assert.deepEqual(await lockFile(file, 'the second'), { heldBy: 'the first' });
  await first.release();
  const third = await lockFile(file, 'the third');
  assert.ok('release' in third);
  await third.release();
});
