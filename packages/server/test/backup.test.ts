/** `releap backup` and `releap restore`, on a database of PostgreSQL and with the keys and files of a home. */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { access, chmod, mkdir, readdir, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Readable } from 'node:stream';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { newUuid, RUNNER_SECRETS_PATH, type RunnerSecrets } from '@releap/contract';
import { mintApiKey } from '@releap/control';
import { openStore } from '@releap/control/backup';
import {
  openDatabase,
  RELEAP_LOCK_SPACE,
  LOCKS,
  migrate,
  readMigrations,
  type Database,
} from '@releap/database';
import { caller, type Caller } from '@releap/testing/callers';
import { credentialOf, postInternal } from '@releap/testing/credentials';
import { until } from '@releap/testing/eventually';
import { testKeys } from '@releap/testing/keys';
import { freePort } from '@releap/testing/ports';
import { emptyDatabase, quiet } from '@releap/testing/postgres';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { create, type ScriptedRunner, startWorld, waitFor, type World } from '@releap/testing/world';
import {
  contentOf,
  environment,
  exists,
  MAIN,
  type Place,
  refused,
  rewrite,
  start,
  succeed,
} from './support/backup-commands.ts';

const PASSPHRASE = 'correct horse battery staple';

describe('backup and restore', () => {
  let folder: string;
  let from: Place;
  let world: World;
  let runner: ScriptedRunner;
  let vm: Awaited<ReturnType<typeof create>>;
  let key: string;
  let orgId: string;
  let projectId: string;
  let call: Caller;
  /** Encrypted, without the store; plain, with the store. */
  let encrypted: string;
  let plain: string;
  const kept = 'a layer that the store keeps';
  const lost = 'a layer that the store loses';
  let lostDigest: string;

  const place = async (name: string, databaseUrl?: string): Promise<Place> => ({
    home: path.join(folder, name, 'home'),
    databaseUrl: databaseUrl ?? (await emptyDatabase()),
    store: path.join(folder, name, 'store'),
  });

  before(async () => {
    folder = await temporaryFolder('releap-backup-');
    from = await place('from');
    await mkdir(from.home, { recursive: true });
    const keys = testKeys(path.join(from.home, 'keys.json'));
    for (const name of ['operator', 'metrics', 'gateway', 'join'])
      await writeFile(path.join(from.home, `${name}.token`), `${name}-`.padEnd(43, 'x'), { mode: 0o600 });
    await mkdir(path.join(from.home, 'certificates/dev/preview.test'), { recursive: true });
    await chmod(path.join(from.home, 'operator.token'), 0o644);
    await writeFile(path.join(from.home, 'certificates/dev/preview.test/root.key'), 'a key', { mode: 0o600 });
    world = await startWorld({
      databaseUrl: from.databaseUrl,
      keys,
      store: { type: 'folder', path: from.store },
      builtinImages: ['busybox'],
    });
    runner = await world.runner();
    // A project of its own: each world replaces the key of the default one.
    orgId = newUuid();
    projectId = newUuid();
    const { pool } = world.database;
    await pool.query('insert into organizations (id, name) values ($1, $2)', [orgId, 'ours']);
    await pool.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [
      projectId,
      orgId,
      'mine',
    ]);
    key = (await mintApiKey(pool, projectId)).token;
    call = caller(() => world.url, key, projectId);
    await call('PUT', '/secrets/TOKEN', { value: 'the value', allowed_domains: ['a.example'] });
    assert.equal((await call('POST', '/volumes', { name: 'data', size_gb: 1 })).status, 200);
    vm = await create(call, world, { name: 'kept', secrets: ['TOKEN'], persistent: true });
    await waitFor(call, vm.id, 'running');
    await addRows();
    encrypted = path.join(folder, 'encrypted.backup');
    await succeed(from, ['backup', encrypted], PASSPHRASE);
    plain = path.join(folder, 'plain.backup');
    const { stderr } = await succeed(from, ['backup', plain, '--plain', '--with-store']);
    assert.match(stderr, /NOT encrypted/);
  });
  after(() => rm(folder, { recursive: true, force: true }));

  /** What a service has after months: rows of old partitions, charges, artifacts in the store, values that are hard to copy. */
  async function addRows(): Promise<void> {
    const { pool } = world.database;
    const { rows } = await pool.query<{ id: string }>('select id from deployment');
    const store = await openStore({ type: 'folder', path: from.store }, rows[0]?.id ?? '');
    for (const [name, content] of [
      ['kept', kept],
      ['lost', lost],
    ] as const) {
      const { digest, bytes } = await store.put(Readable.from([Buffer.from(content)]), { maxBytes: 1024 });
      if (name === 'lost') lostDigest = digest;
      const id = newUuid();
      await pool.query('insert into blobs (digest, bytes, stored_at) values ($1, $2, now())', [
        digest,
        bytes,
      ]);
      await pool.query(
        `insert into artifacts (id, project_id, kind, digest, bytes, stored_at) values ($1, $2, 'image', $3, $4, now())`,
        [id, projectId, `sha256:${digest.slice(7).split('').toReversed().join('')}`, bytes],
      );
      await pool.query(`insert into artifact_parts values ($1, 'layer', $2, $3)`, [id, digest, bytes]);
      await pool.query(
        `insert into images (id, project_id, name, source, status, manifest_name, job_id)
         values ($1, $2, $3, $4, 'ready', $5, $1)`,
        [
          newUuid(),
          projectId,
          name,
          { note: 'a \\ tab\t, a line\n and "quotes" \\N' },
          `sha256:${digest.slice(7).split('').toReversed().join('')}`,
        ],
      );
    }
    await pool.query(
      `insert into audit_log (id, org_id, actor_kind, action, target_kind, target_id, outcome, created_at)
       select gen_random_uuid(), $1, 'system', 'test', 'test', 'x', 'done', now() - n * interval '40 days' from generate_series(0, 9) n`,
      [orgId],
    );
    await pool.query(
      `select make_usage_partition('usage_minutes', d::date, d::date + 1)
         from (select date_trunc('day', now() at time zone 'utc') - interval '40 days' as d) t`,
    );
    await pool.query(
      `insert into credit_ledger (org_id, amount, kind, note) values ($1, 5000000, 'grant', 'for the test')`,
      [orgId],
    );
  }

  it('a service that runs is backed up: all rows, keys and files come back, and another server continues', async () => {
    const to = await place('whole');
    const mode = (await stat(encrypted)).mode & 0o777;
    assert.equal(mode, 0o600);
    const file = await readFile(encrypted);
    for (const secret of ['for the test', 'a key', 'operator-xxx', '"keys"'])
      assert.ok(!file.includes(secret), secret);
    const { stdout } = await succeed(to, ['restore', encrypted], PASSPHRASE);
    for (const name of ['keys.json', 'operator.token', 'certificates/dev/preview.test/root.key'])
      assert.deepEqual(
        await readFile(path.join(to.home, name)),
        await readFile(path.join(from.home, name)),
        name,
      );
    // By name: this home has another, empty store.
    assert.match(stdout, /0 of 2 blobs are there/);
    assert.match(stdout, /lost: image kept of project/);
    assert.match(stdout, new RegExp(`${runner.id} \\(`));
    assert.match(stdout, /sandboxes: kept/);

    await using again = await startWorld({
      databaseUrl: to.databaseUrl,
      keys: testKeys(path.join(to.home, 'keys.json')),
      store: { type: 'folder', path: to.store },
    });
    const later = caller(() => again.url, key, projectId);
    assert.equal((await later('GET', `/vms/${vm.id}`)).body.name, 'kept');
    // The host has seen generations that this database has not.
    const seen = runner.assignments.get(vm.uuid);
    assert.ok(seen);
    // Nothing is placed on a host that was connected then, before it is again.
    const { rows: before } = await again.database.pool.query('select status, ready from runners');
    assert.deepEqual(before, [{ status: 'offline', ready: false }]);
    const host = await again.runner({ id: runner.id });
    const assigned = await host.assigned(vm.uuid);
    assert.ok(assigned.generation > seen.generation + 1000, `${assigned.generation}`);
    await waitFor(later, vm.id, 'running');
    const answer = await postInternal(again.internalUrl, RUNNER_SECRETS_PATH, credentialOf(runner.id), {
      sandboxes: [{ id: vm.uuid }],
    });
    const { sandboxes } = (await answer.json()) as RunnerSecrets;
    assert.equal(sandboxes[0]?.secrets[0]?.value, 'the value');
    assert.equal((await later('POST', `/vms/${vm.id}/stop`)).status, 200);
    await waitFor(later, vm.id, 'stopped');
    assert.equal((await later('POST', '/volumes', { name: 'later', size_gb: 1 })).status, 200);

    // What the server of the backup held is taken over: its leases end by their deadlines.
    const { pool } = again.database;
    await until(async () => {
      const { rowCount } = await pool.query(
        `select 1 from task_leases l where l.expires_at > now() and not exists (select 1 from control_servers s where s.id = l.holder)`,
      );
      return rowCount === 0;
    });
    // The same backup once more: the host has seen the generations of the first restore.
    const newest = host.assignments.get(vm.uuid)?.generation ?? 0;
    const third = await place('again');
    await succeed(third, ['restore', encrypted], PASSPHRASE);
    await using database = openDatabase({ url: third.databaseUrl, log: quiet });
    const { rows } = await database.pool.query<{ generation: number }>(
      'select generation from sandboxes where id = $1',
      [vm.uuid],
    );
    assert.ok((rows[0]?.generation ?? 0) > newest);
  });

  it('the rows are those of the snapshot, sums are not counted twice, and triggers and foreign keys are back', async () => {
    // Nothing writes any more.
    await world.control.close();
    const file = path.join(folder, 'quiet.backup');
    await succeed(from, ['backup', file, '--plain']);
    const to = await place('rows');
    await succeed(to, ['restore', file]);
    const database = openDatabase({ url: to.databaseUrl, log: quiet });
    try {
      assert.deepEqual(await contentOf(database), await contentOf(world.database));
      const schemaOf = async ({ pool }: Database): Promise<unknown> => {
        const { rows } = await pool.query(
          `select conrelid::regclass::text as t, conname, pg_get_constraintdef(oid) as def from pg_constraint
            where connamespace = 'public'::regnamespace and conparentid = 0 and contype = 'f'
           union all select tgrelid::regclass::text, tgname, tgenabled::text from pg_trigger
            where not tgisinternal and tgparentid = 0 and tgrelid::regclass::text !~ '_(\\d{4}_\\d{2}|first)' order by 1, 2`,
        );
        return rows;
      };
      assert.deepEqual(await schemaOf(database), await schemaOf(world.database));
      await assert.rejects(database.pool.query(`delete from audit_log`), /append/);
      const { rowCount } = await database.pool.query(
        `select 1 from pg_class where relname = 'usage_minutes' || to_char((now() at time zone 'utc') - interval '40 days', '_YYYY_MM_DD')`,
      );
      assert.equal(rowCount, 1);
      // Ids continue.
      await database.pool.query(
        `insert into credit_ledger (org_id, amount, kind, note) values ($1, 1, 'grant', 'next')`,
        [orgId],
      );
    } finally {
      await database.close();
      await world.restart();
    }
  });

  it('with the store: blobs come back, and one that is missing is named with what it belongs to', async () => {
    const to = await place('blobs');
    const { stdout } = await succeed(to, ['restore', plain]);
    for (const name of ['keys.json', 'operator.token'])
      assert.equal((await stat(path.join(to.home, name))).mode & 0o777, 0o600);
    assert.match(stdout, /2 of 2 blobs are there/);
    assert.doesNotMatch(stdout, /lost: image/);
    const { rows } = await world.database.pool.query<{ id: string }>('select id from deployment');
    const source = await openStore({ type: 'folder', path: from.store }, rows[0]?.id ?? '');
    await source.delete(lostDigest);
    const again = { ...(await place('missing')), store: from.store };
    const said = await succeed(again, ['restore', encrypted], PASSPHRASE);
    assert.match(said.stdout, /1 of 2 blobs are there/);
    assert.match(said.stdout, /lost: image lost of project/);
    assert.doesNotMatch(said.stdout, /image kept/);
  });

  it('a backup of an older version is migrated', async () => {
    const older = await place('older');
    const known = await readMigrations();
    await migrate({ url: older.databaseUrl, log: quiet, migrations: known.slice(0, -1) });
    const file = path.join(folder, 'older.backup');
    await mkdir(older.home, { recursive: true });
    await writeFile(path.join(older.home, 'keys.json'), '{}', { mode: 0o600 });
    await succeed(older, ['backup', file, '--plain']);
    const to = await place('newer');
    await succeed(to, ['restore', file]);
    assert.deepEqual(await migrate({ url: to.databaseUrl, log: quiet }), []);
  });

  it('keys are not written as they are unless that is asked for, nothing is replaced, and standard output gets the same', async () => {
    const file = path.join(folder, 'none.backup');
    await refused(from, ['backup', file], /--passphrase-file|--plain/);
    await refused(from, ['backup', file, '--plian'], /Unknown option '--plian'/);
    await refused(from, ['restore'], /usage:/);
    await refused(
      from,
      ['backup', file],
      /RELEAP_BACKUP_PASSPHRASE=\*\*\*: must be a text of at least 12/,
      'short',
    );
    await refused(from, ['backup', encrypted], /exists/, PASSPHRASE);
    await assert.rejects(access(file));
    const words = path.join(folder, 'passphrase');
    await writeFile(words, `${PASSPHRASE}\n`);
    const { stdout } = await succeed(from, ['backup', '-', '--passphrase-file', words]);
    await writeFile(file, Buffer.from(stdout, 'latin1'));
    await succeed(await place('words'), ['restore', file, '--passphrase-file', words]);
  });

  it('without the key file there is no backup', async () => {
    await refused(
      { ...from, home: path.join(folder, 'elsewhere') },
      ['backup', path.join(folder, 'keyless.backup'), '--plain'],
      /keys\.json cannot be read/,
    );
    assert.ok(!(await readdir(folder)).some((name) => name.startsWith('keyless')));
  });

  it('a wrong passphrase, a damaged or incomplete file, and a newer schema change nothing', async () => {
    const to = await place('unchanged');
    const unchanged = async (args: string[], reason: RegExp, passphrase?: string): Promise<void> => {
      await refused(to, args, reason, passphrase);
      assert.deepEqual(await readdir(to.home).catch(() => []), []);
      await using database = openDatabase({ url: to.databaseUrl, log: quiet });
      const { rowCount } = await database.pool.query(
        `select 1 from pg_class where relnamespace = 'public'::regnamespace`,
      );
      assert.equal(rowCount, 0);
    };
    await unchanged(['restore', encrypted], /passphrase is not the one/, 'another passphrase');
    await unchanged(['restore', encrypted], /passphrase must be given/);
    await unchanged(['restore', path.join(folder, 'absent')], /no such file/);
    await unchanged(['restore', MAIN], /not a backup|no backup/);
    const damaged = path.join(folder, 'damaged.backup');
    for (const [original, passphrase] of [
      [encrypted, PASSPHRASE],
      [plain, undefined],
    ] as const) {
      const whole = await readFile(original);
      for (const share of [0.5, 0.99]) {
        await writeFile(damaged, whole);
        await truncate(damaged, Math.floor(whole.length * share));
        await unchanged(['restore', damaged], /damaged|incomplete|not a backup/, passphrase);
      }
      // In the content of a part: what fills up the blocks of a tar archive has no meaning.
      await rewrite(original, damaged, (name, content) => {
        const flipped = Buffer.from(content);
        if (name.startsWith('database/organizations/')) flipped[Math.floor(content.length / 2)]! ^= 1;
        return flipped;
      });
      await unchanged(['restore', damaged], /damaged/, passphrase);
    }
    await rewrite(plain, damaged, (name, content) =>
      name === 'header.json'
        ? Buffer.from(content.toString().replace(/"schema": \d+/, '"schema": 9999'))
        : content,
    );
    await unchanged(['restore', damaged], /schema 9999.*newer version/);
    await rewrite(plain, damaged, (name, content) => (name.startsWith('files/keys') ? undefined : content));
    await unchanged(['restore', damaged], /damaged/);
  });

  it('a full disk: it fails, and leaves nothing', async (t) => {
    if (process.getuid?.() !== 0) return t.skip('needs root');
    const small = path.join(folder, 'small');
    await mkdir(small);
    const script = `mount -t tmpfs -o size=64k none "$0" && "$@"; code=$?; ls -A "$0"; exit $code`;
    const args = ['--mount', '--propagation', 'private', 'sh', '-c', script, small];
    const failed = promisify(execFile)(
      'unshare',
      [...args, process.execPath, MAIN, 'backup', path.join(small, 'full.backup')],
      { env: environment(from, PASSPHRASE) },
    );
    await assert.rejects(failed, (error: Error & { code: number; stdout: string; stderr: string }) => {
      assert.equal(error.code, 1);
      assert.match(error.stderr, /ENOSPC|no space/i);
      assert.equal(error.stdout, '');
      return true;
    });
  });

  it('a target that is not empty is refused by name; --force moves files aside and never empties a database', async () => {
    const to = await place('taken');
    await refused(
      { ...to, databaseUrl: from.databaseUrl },
      ['restore', plain, '--force'],
      /database of DATABASE_URL is not empty/,
    );
    await mkdir(to.home, { recursive: true });
    await writeFile(path.join(to.home, 'keys.json'), 'precious', { mode: 0o600 });
    await refused(to, ['restore', plain], /not empty:\n.*keys\.json/);
    assert.equal(await readFile(path.join(to.home, 'keys.json'), 'utf8'), 'precious');
    const { stderr } = await succeed(to, ['restore', plain, '--force']);
    const [, aside] = /moved .*\/keys\.json to (.*)\n/.exec(stderr) ?? [];
    assert.ok(aside);
    assert.equal(await readFile(aside, 'utf8'), 'precious');
    await refused(to, ['restore', plain], /not empty/);
  });

  it('a home of a restore that was killed does not start, says why, and is restored by the same command', async (t) => {
    const to = await place('killed');
    await using database = openDatabase({ url: to.databaseUrl, log: quiet, connections: 2 });
    const holder = await database.pool.connect();
    // Migrations wait for it.
    await holder.query('select pg_advisory_lock($1, $2)', [RELEAP_LOCK_SPACE, LOCKS.migrate]);
    const first = start(to, ['restore', plain]);
    await until(() => exists(path.join(to.home, 'restore.json')));
    first.child.kill('SIGKILL');
    await first.ended;
    await refused(to, ['control'], /restore of .*plain\.backup.* has not ended: run it again/);
    await refused(to, ['restore', encrypted], /restore of another backup/, PASSPHRASE);
    holder.release(true);
    // After the database: its rows are not loaded twice.
    const blocked = path.join(to.home, 'certificates');
    await writeFile(blocked, '');
    await refused(to, ['restore', plain], /certificates/);
    const loaded = await contentOf(database);
    await rm(blocked);
    await succeed(to, ['restore', plain]);
    assert.deepEqual(await contentOf(database), loaded);
    assert.ok(!(await exists(path.join(to.home, 'restore.json'))));
    const port = await freePort();
    const control = spawn(process.execPath, [MAIN, 'control'], {
      env: {
        ...environment(to),
        RELEAP_PORT: String(port),
        RELEAP_INTERNAL_PORT: '0',
        RELEAP_IDENTITY_PORT: '0',
      },
      stdio: 'ignore',
    });
    t.after(() => control.kill('SIGKILL'));
    await until(
      async () => (await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => undefined))?.status === 200,
    );
    const again = caller(() => `http://127.0.0.1:${port}`, key, projectId);
    assert.equal((await again('GET', '/volumes')).status, 200);
    control.kill('SIGTERM');
    await new Promise((resolve) => control.once('close', resolve));
  });
});
