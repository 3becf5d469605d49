import assert from 'node:assert/strict';
import { rename } from 'node:fs/promises';
import { describe, it } from 'node:test';
import { newToken, SecretList, SecretRecord, tokenDigest } from '@releap/contract';
import { pino } from 'pino';
import { Compile } from 'typebox/compile';
import { createEncryption } from '../src/platform/encryption/encryption.ts';
import { addKey, promoteKey } from '../src/platform/encryption/key-file.ts';
import { rewrapAll } from '../src/platform/encryption/rewrap.ts';
import { ENCRYPTED_TABLES } from '../src/storage/secrets/encrypted-tables.ts';
import { filesWith } from '@releap/testing/find-text';
import { keyPath, testKeys } from '@releap/testing/keys';
import { tablesWith } from '@releap/testing/inspect';
import { create, quiet, startWorld, until, waitFor, sharedText } from '@releap/testing/world';
import { secretsOf } from './support/secrets.ts';

const file = keyPath();
const keys = testKeys(file);
const encryption = createEncryption(keys);
const lines: string[] = [];
const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) });
const world = await startWorld({ keys, log });
const call = world.call;
await world.runner();

const { put, stored, envOf, lookUp } = secretsOf(() => world, encryption);

describe('secrets', () => {
  it('PUT /secrets/:name: 204 without a body; GET has metadata and never the value', async () => {
    const answer = await put('TOKEN', {
      value: 'plaintext-of-token',
      allowed_domains: ['API.example.com', '*.example.org', 'api.example.com'],
      description: 'for the tests',
    });
    assert.deepEqual([answer.status, answer.text], [204, '']);
    const read = await call('GET', '/secrets/TOKEN');
    assert.equal(read.status, 200);
    assert.ok(Compile(SecretRecord).Check(read.body), read.text);
    const { created_at, updated_at, ...rest } = read.body;
    assert.equal(created_at, updated_at);
    assert.deepEqual(rest, {
      name: 'TOKEN',
      allowed_domains: ['api.example.com', '*.example.org'],
      description: 'for the tests',
    });
  });

  it('PUT again replaces value, domains and description', async () => {
    await put('AGAIN', { value: 'first', allowed_domains: ['a.b'], description: 'x' });
    const one = await stored(call, 'AGAIN');
    await put('AGAIN', { value: 'second' });
    const two = await stored(call, 'AGAIN');
    assert.equal(two.id, one.id);
    assert.notDeepEqual(two.envelope, one.envelope);
    const { body } = await call('GET', '/secrets/AGAIN');
    assert.deepEqual(
      [body.allowed_domains, body.description, body.created_at],
      [[], undefined, one.created_at.toISOString()],
    );
    assert.ok(body.updated_at >= body.created_at);
  });

  for (const [what, name, body, message] of [
    ['invalid name', '1A', { value: 'x' }, /name must match .*"1A"/],
    ['invalid name', 'A-B', { value: 'x' }, /name must match/],
    ['invalid name, NUL', 'A%00', { value: 'x' }, /NUL/],
    ['name of 257 characters', 'N'.repeat(257), { value: 'x' }, /at most 256/],
    ['name of 3000 characters', 'N'.repeat(3000), { value: 'x' }, /at most 256/],
    ['value over 64 KiB', 'A', { value: 'x'.repeat(65_537) }, /value has 65537 bytes/],
    ['no value', 'A', {}, /value is required/],
    ['value that is no string', 'A', { value: 5 }, /value must be a string/],
    [
      'invalid allowed_domains entry',
      'A',
      { value: 'x', allowed_domains: ['https://a.b'] },
      /allowed_domains\[0\]/,
    ],
    [
      'invalid allowed_domains entry',
      'A',
      { value: 'x', allowed_domains: ['a.b:443'] },
      /allowed_domains\[0\]/,
    ],
    ['description that is too long', 'A', { value: 'x', description: 'x'.repeat(1025) }, /description/],
    ['a body that is no object', 'A', '[]', /the request body must be a JSON object/],
  ] as const) {
    it(`PUT /secrets/:name 400: ${what}`, async () => {
      const answer = await put(name, body);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, message);
    });
  }

  it('PUT /secrets/:name 400: a body that is not JSON is not quoted', async () => {
    for (const body of ['{"value": hunter2}', 'hunter2', '{"value": "hunter2" "x"}', '{"value":"hunter2']) {
      const answer = await put('A', body);
      assert.equal(answer.status, 400);
      assert.doesNotMatch(answer.text, /hunter2|unter2/);
    }
  });

  it('takes the largest value and the longest name', async () => {
    assert.equal((await put('N'.repeat(256), { value: 'ü'.repeat(32 * 1024) })).status, 204);
    assert.equal((await call('GET', `/secrets/${'N'.repeat(256)}`)).status, 200);
    assert.equal((await put('__proto__', { value: '' })).status, 204);
  });

  it('GET /secrets: a list by name; include_object_store adds a flag to each', async () => {
    const own = await world.stranger();
    assert.deepEqual((await own('GET', '/secrets')).body, { secrets: [] });
    for (const name of ['B', 'a', 'A']) await put(name, { value: name }, own);
    const list = (await own('GET', '/secrets')).body;
    assert.ok(Compile(SecretList).Check(list));
    assert.deepEqual(list.secrets.map((secret: { name: string }) => secret.name).toSorted(), ['A', 'B', 'a']);
    assert.ok(list.secrets.every((secret: object) => !('object_store' in secret)));
    const all = (await own('GET', '/secrets?include_object_store=true')).body.secrets;
    assert.deepEqual(
      all.map((secret: { object_store?: boolean }) => secret.object_store),
      [false, false, false],
    );
    assert.equal((await own('GET', '/secrets?include_object_store=maybe')).status, 400);
  });

  it('GET /secrets/:name 404: unknown, malformed, deleted', async () => {
    for (const name of ['NOBODY', 'A-B', 'x'.repeat(300)]) {
      const answer = await call('GET', `/secrets/${name}`);
      assert.equal(answer.status, 404);
      assert.match(answer.body.error, /^secret ".*" not found$/);
    }
  });

  it('DELETE /secrets/:name: 204, also again and for what never was; the value is erased', async () => {
    await put('GONE');
    const { id } = await stored(call, 'GONE');
    for (const name of ['GONE', 'GONE', 'NEVER', 'A-B']) {
      const answer = await call('DELETE', `/secrets/${name}`);
      assert.deepEqual([answer.status, answer.text], [204, '']);
    }
    assert.equal((await call('GET', '/secrets/GONE')).status, 404);
    assert.equal((await world.database.pool.query('select 1 from secrets where id = $1', [id])).rowCount, 0);
  });

  it('need a key: 401 without one, and with an unknown one', async () => {
    for (const [method, path] of [
      ['PUT', '/secrets/A'],
      ['GET', '/secrets'],
      ['GET', '/secrets/A'],
      ['DELETE', '/secrets/A'],
    ] as const) {
      const headers = { authorization: `Bearer ${newToken('apiKey')}` };
      const body = method === 'PUT' ? { value: 'x' } : undefined;
      assert.equal((await call(method, path, body, { headers })).status, 401);
    }
  });

  it('of two projects never meet', async () => {
    const [one, two] = [await world.stranger(), await world.stranger()];
    await put('SHARED', { value: 'of one', description: 'one' }, one);
    const unknown = await two('GET', '/secrets/SHARED');
    const never = await two('GET', '/secrets/SHAREX');
    const refusal = sharedText(never).replace('SHAREX', 'SHARED');
    assert.deepEqual([unknown.status, sharedText(unknown)], [404, refusal]);
    assert.deepEqual((await two('GET', '/secrets')).body.secrets, []);
    await two('DELETE', '/secrets/SHARED');
    await put('SHARED', { value: 'of two', description: 'two' }, two);
    assert.equal((await one('GET', '/secrets/SHARED')).body.description, 'one');
    const refused = await one('POST', '/vms', { image: 'busybox', secrets: ['SHARED', 'SHAREX'] });
    assert.match(refused.body.error, /no secret "SHAREX"/);
    await two('DELETE', '/secrets/SHARED');
    assert.equal((await one('GET', '/secrets/SHARED')).status, 200);
    // A row that is moved to another project, or to another name, does not open there.
    await put('MOVED', { value: 'v' }, one);
    const vm = await create(two, world, { secrets: [] });
    const row = await stored(one, 'MOVED');
    const placeholder = newToken('secretPlaceholder');
    await world.database.pool.query(
      `insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name) values ($1, $2, $3, 'MOVED')`,
      [vm.uuid, tokenDigest(placeholder), row.id],
    );
    assert.equal((await lookUp(vm.uuid, placeholder))?.value, 'v');
    await world.database.pool.query('update secrets set project_id = $2 where id = $1', [
      row.id,
      two.projectId,
    ]);
    await assert.rejects(lookUp(vm.uuid, placeholder), /cannot be unwrapped/);
    await world.database.pool.query(`update secrets set project_id = $2, name = 'OTHER' where id = $1`, [
      row.id,
      one.projectId,
    ]);
    await assert.rejects(lookUp(vm.uuid, placeholder), /cannot be unwrapped/);
    await world.database.pool.query('delete from sandbox_secrets where secret_id = $1', [row.id]);
    await world.database.pool.query('delete from secrets where id = $1', [row.id]);
  });

  it('503 on writes while encryption is unavailable; what was not written is not there, and reads succeed', async () => {
    await put('BEFORE');
    await rename(file, `${file}.away`);
    try {
      const answer = await put('DURING');
      assert.equal(answer.status, 503, answer.text);
      assert.match(answer.body.error, /encryption is temporarily unavailable; nothing was written/);
      assert.ok(answer.headers.get('retry-after'));
      assert.doesNotMatch(answer.text, /keys\.json/);
      assert.equal((await put('BEFORE', { value: 'other' })).status, 503);
      // What is wrong with the request is said first.
      assert.equal((await put('A-B')).status, 400);
      assert.equal((await call('GET', '/secrets/BEFORE')).status, 200);
      assert.equal((await call('GET', '/secrets')).status, 200);
      assert.equal((await call('GET', '/secrets/DURING')).status, 404);
      assert.equal((await call('DELETE', '/secrets/NEVER')).status, 204);
    } finally {
      await rename(`${file}.away`, file);
    }
    assert.equal((await put('DURING')).status, 204);
  });

  it('503 on writes of a server that was given no keys at all', async () => {
    await using other = await startWorld({ builtinImages: [] });
    assert.equal((await other.call('PUT', '/secrets/A', { value: 'x' })).status, 503);
    assert.equal((await other.call('GET', '/secrets')).status, 200);
  });

  it('a project has at most 1000; one that exists can still be replaced', async () => {
    const own = await world.stranger();
    await put('FIRST', { value: 'x' }, own);
    await world.database.pool.query(
      `insert into secrets (id, project_id, name, key_id, envelope)
       select gen_random_uuid(), $1, 'S' || n, 'none', '' from generate_series(1, 999) n`,
      [own.projectId],
    );
    const answer = await put('ONE_MORE', { value: 'x' }, own);
    assert.equal(answer.status, 400);
    assert.match(answer.body.error, /has 1000 secrets, which is the most allowed/);
    assert.equal((await put('FIRST', { value: 'y' }, own)).status, 204);
    await world.database.pool.query('delete from secrets where project_id = $1', [own.projectId]);
  });
});

describe('at rest', () => {
  it('rotation: all values come under the newest key in the background, and open as before', async () => {
    await put('ROTATED', { value: 'rotated value' });
    const vm = await create(call, world, { secrets: ['ROTATED'] });
    const { ROTATED: placeholder } = await envOf(vm.uuid);
    await call('PUT', '/registries/rotated.example', { username: 'u', password: 'rotated password' });
    const before = (await stored(call, 'ROTATED')).key_id;
    const newest = await addKey(file);
    assert.notEqual(newest, before);
    await promoteKey(file);
    assert.equal((await lookUp(vm.uuid, placeholder))?.value, 'rotated value');
    const under = async (): Promise<string[]> =>
      (
        await world.database.pool.query<{ key_id: string }>(
          'select key_id from secrets union select key_id from registry_credentials',
        )
      ).rows.map((row) => row.key_id);
    await rewrapAll(world.database, encryption, ENCRYPTED_TABLES, quiet, new AbortController().signal);
    assert.deepEqual(await under(), [newest]);
    assert.equal((await lookUp(vm.uuid, placeholder))?.value, 'rotated value');
  });

  it('rotation: a server does it by itself, and continues past a value that does not open', async () => {
    const own = keyPath();
    await using other = await startWorld({ builtinImages: [], keys: testKeys(own) });
    for (let n = 0; n < 5; n++) await other.call('PUT', `/secrets/S${n}`, { value: `v${n}` });
    await other.database.pool.query(`update secrets set envelope = '\\x0100' where name = 'S2'`);
    const newest = await addKey(own);
    await promoteKey(own);
    await other.restart();
    await until(async () => {
      const { rows } = await other.database.pool.query(
        'select count(*)::int as n from secrets where key_id = $1',
        [newest],
      );
      return rows[0].n === 4;
    });
  });

  it('no value is anywhere in the database, its files or the log', async () => {
    const values = ['5f0c-needle-secret-9a1d', '7be2-needle-password-44c8'] as const;
    await put('NEEDLE', { value: values[0] });
    await call('PUT', '/registries/needle.example', { username: 'u', password: values[1] });
    const vm = await create(call, world, {
      secrets: ['NEEDLE'],
      image: 'needle.example/app:1',
      persistent: true,
    });
    await call('POST', '/images', { name: 'needle', source: 'needle.example/app:2' });
    await waitFor(call, vm.id, 'running');
    assert.equal((await lookUp(vm.uuid, (await envOf(vm.uuid))['NEEDLE']))?.value, values[0]);

    const { pool } = world.database;
    assert.ok(
      (await tablesWith(world.database, 'needle.example')).length > 0,
      'the search finds what is stored',
    );
    for (const value of values) {
      assert.deepEqual(await tablesWith(world.database, value), []);
      assert.deepEqual(await tablesWith(world.database, Buffer.from(value).toString('hex')), []);
    }
    await pool.query('checkpoint');
    // Seen from its own processes, which may have a root of their own. The server has many databases of other tests.
    const { rows } = await pool.query<{ folder: string }>(
      `select '/proc/' || pg_backend_pid() || '/root' || current_setting('data_directory') || '/' || part as folder
         from pg_database, unnest(array['base/' || oid, 'global', 'pg_wal']) as part where datname = current_database()`,
    );
    const files = (...texts: string[]): string[] => rows.flatMap(({ folder }) => filesWith(folder, ...texts));
    // The search finds text that is stored in plain form, also in the write-ahead log.
    assert.ok(files('needle.example').length > 0);
    assert.deepEqual(files(...values), []);
    for (const value of values) assert.ok(!lines.some((line) => line.includes(value)));
    assert.ok(lines.length > 0);
  });
});
