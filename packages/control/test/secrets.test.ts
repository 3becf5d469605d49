import assert from 'node:assert/strict';
import { rename } from 'node:fs/promises';
import { after, before, describe, it } from 'node:test';
import { newToken, newUuid, SecretList, SecretRecord, tokenDigest } from '@releap/contract';
import { pino } from 'pino';
import { Compile } from 'typebox/compile';
import { createEncryption } from '../src/encryption/encryption.ts';
import { addKey } from '../src/encryption/key-file.ts';
import { rewrapAll } from '../src/encryption/rewrap.ts';
import { copySecrets, lookUpPlaceholder, type Substitution } from '../src/secrets/placeholders.ts';
import { eraseUnused } from '../src/secrets/secrets.ts';
import { filesWith } from '@releap/testing/find-text';
import { keyPath, testKeys } from '@releap/testing/keys';
import {
  create,
  quiet,
  startWorld,
  until,
  waitFor,
  type Caller,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';
import { inspect } from '@releap/testing/inspect';

const file = keyPath();
const keys = testKeys(file);
const encryption = createEncryption(keys);
const lines: string[] = [];
let world: World;
let call: Caller;
before(async () => {
  const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) });
  world = await startWorld({ keys, log });
  call = world.call;
  await world.runner();
});
after(async () => world[Symbol.asyncDispose]());

const put = (name: string, body: unknown = { value: 'x' }, by: Caller = call) =>
  by('PUT', `/secrets/${name}`, body);
const stored = async (caller: Caller, name: string) =>
  (
    await world.database.pool.query(
      'select * from secrets where project_id = $1 and name = $2 and deleted_at is null',
      [caller.projectId, name],
    )
  ).rows[0];
const envOf = async (uuid: string): Promise<Record<string, string>> =>
  (await inspect(world.database, { uuid })).env;
const lookUp = (uuid: string, placeholder: string | undefined): Promise<Substitution | null> =>
  lookUpPlaceholder(world.database.pool, encryption, uuid, placeholder ?? '');

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

  it('want a key: 401 without, and with one of nobody', async () => {
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
    assert.deepEqual([unknown.status, unknown.text], [404, never.text.replace('SHAREX', 'SHARED')]);
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

  it('503 on writes while encryption is unavailable; what was not written is not there, and reads go on', async () => {
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

describe('POST /vms with secrets', () => {
  it('gives the sandbox a placeholder each, in its environment, and never a value', async () => {
    await put('ONE', { value: 'value-of-one', allowed_domains: ['one.example'] });
    await put('TWO', { value: 'value-of-two' });
    const vm = await create(call, world, { secrets: ['ONE', 'TWO', 'ONE'], env: { MORE: 'x' } });
    const env = await envOf(vm.uuid);
    assert.deepEqual(Object.keys(env).sort(), ['MORE', 'ONE', 'TWO']);
    for (const name of ['ONE', 'TWO']) assert.match(env[name] ?? '', /^rlps_[0-9A-Za-z]{43}$/);
    assert.notEqual(env['ONE'], env['TWO']);
    assert.deepEqual(await lookUp(vm.uuid, env['ONE']), {
      name: 'ONE',
      value: 'value-of-one',
      allowedDomains: ['one.example'],
    });
    const runner = await world.runner();
    assert.ok(runner);
    await waitFor(call, vm.id, 'running');
  });

  it('400: unknown secret, by name; nothing is created', async () => {
    await put('KNOWN');
    const before = (await call('GET', '/vms')).body.vms.length;
    const answer = await call('POST', '/vms', { image: 'busybox', secrets: ['KNOWN', 'NO_SUCH'] });
    assert.equal(answer.status, 400, answer.text);
    assert.match(answer.body.error, /^secrets: the project has no secret "NO_SUCH"/);
    assert.match(
      (await call('POST', '/vms', { image: 'busybox', secrets: ['no such'] })).body.error,
      /"no such" is not a valid secret name/,
    );
    assert.match(
      (await call('POST', '/vms', { image: 'busybox', secrets: ['KNOWN'], env: { KNOWN: '' } })).body.error,
      /env\.KNOWN cannot be set/,
    );
    assert.equal((await call('GET', '/vms')).body.vms.length, before);
  });

  it('makes others for every sandbox; one means nothing to another sandbox', async () => {
    await put('EACH');
    const [a, b] = [
      await create(call, world, { secrets: ['EACH'] }),
      await create(call, world, { secrets: ['EACH'] }),
    ];
    const [inA, inB] = [(await envOf(a.uuid))['EACH'], (await envOf(b.uuid))['EACH']];
    assert.notEqual(inA, inB);
    assert.equal((await lookUp(a.uuid, inA))?.name, 'EACH');
    assert.equal(await lookUp(b.uuid, inA), null);
    assert.equal(await lookUp(newUuid(), inA), null);
    assert.equal(await lookUp(a.uuid, newToken('secretPlaceholder')), null);
    assert.equal(await lookUp(a.uuid, 'rlps_short'), null);
    assert.equal(await lookUp(a.uuid, ''), null);
  });

  it('keeps them over stop, start, pause and resume', async () => {
    await put('KEPT');
    const vm = await create(call, world, { secrets: ['KEPT'], persistent: true });
    await waitFor(call, vm.id, 'running');
    const runner = await world.runner({ ready: false });
    assert.ok(runner);
    const first = await envOf(vm.uuid);
    for (const [verb, status] of [
      ['stop', 'stopped'],
      ['start', 'running'],
      ['pause', 'paused'],
      ['resume', 'running'],
    ] as const) {
      assert.equal((await call('POST', `/vms/${vm.id}/${verb}`)).status, 200);
      await waitFor(call, vm.id, status);
      assert.deepEqual(await envOf(vm.uuid), first);
      assert.equal((await lookUp(vm.uuid, first['KEPT']))?.value, 'x');
    }
  });

  it('uses a new value and new domains from the moment they are written', async () => {
    await put('TURNED', { value: 'old' });
    const vm = await create(call, world, { secrets: ['TURNED'] });
    const { TURNED: placeholder } = await envOf(vm.uuid);
    await put('TURNED', { value: 'new', allowed_domains: ['a.b'] });
    assert.deepEqual(await lookUp(vm.uuid, placeholder), {
      name: 'TURNED',
      value: 'new',
      allowedDomains: ['a.b'],
    });
  });

  it('a deleted secret works on in the sandboxes that have it, and is erased with the last of them', async () => {
    await put('ENDED', { value: 'still here' });
    const { id } = await stored(call, 'ENDED');
    const [a, b] = [
      await create(call, world, { secrets: ['ENDED'] }),
      await create(call, world, { secrets: ['ENDED'], persistent: true }),
    ];
    for (const vm of [a, b]) await waitFor(call, vm.id, 'running');
    const placeholders = [(await envOf(a.uuid))['ENDED'], (await envOf(b.uuid))['ENDED']];
    assert.equal((await call('DELETE', '/secrets/ENDED')).status, 204);
    assert.equal((await call('GET', '/secrets/ENDED')).status, 404);
    assert.ok(!(await call('GET', '/secrets')).text.includes('"ENDED"'));
    assert.equal((await call('POST', '/vms', { image: 'busybox', secrets: ['ENDED'] })).status, 400);
    assert.equal((await lookUp(a.uuid, placeholders[0]))?.value, 'still here');
    // Another of the same name is another secret.
    await put('ENDED', { value: 'another' });
    assert.equal((await lookUp(a.uuid, placeholders[0]))?.value, 'still here');

    await call('DELETE', `/vms/${a.id}`);
    await waitFor(call, a.id, 'deleted');
    assert.equal(await lookUp(a.uuid, placeholders[0]), null);
    await eraseUnused(world.database.pool);
    assert.equal((await lookUp(b.uuid, placeholders[1]))?.value, 'still here');
    await call('DELETE', `/vms/${b.id}`);
    await waitFor(call, b.id, 'deleted');
    await eraseUnused(world.database.pool);
    const left = await world.database.pool.query('select 1 from secrets where id = $1', [id]);
    assert.equal(left.rowCount, 0);
    assert.equal((await call('GET', '/secrets/ENDED')).status, 200);
  });

  it('a copy of a sandbox gets placeholders of its own, and those in its memory go on working', async () => {
    await put('FORKED', { value: 'v' });
    await put('FORKED_2', { value: 'w' });
    const source = await create(call, world, { secrets: ['FORKED', 'FORKED_2'] });
    const was = await envOf(source.uuid);
    const copies: { id: string; env: Record<string, string> }[] = [];
    for (const from of [source.uuid, 'copy'] as const) {
      const id = (await create(call, world)).uuid;
      const of = from === 'copy' ? (copies[0]?.id ?? '') : from;
      const env = await world.database.transaction((client) => copySecrets(client, { from: of, to: id }));
      copies.push({ id, env });
    }
    for (const { id, env } of copies) {
      assert.deepEqual(Object.keys(env).sort(), ['FORKED', 'FORKED_2']);
      assert.notEqual(env['FORKED'], was['FORKED']);
      assert.equal((await lookUp(id, env['FORKED']))?.value, 'v');
      assert.equal((await lookUp(id, was['FORKED_2']))?.value, 'w');
      assert.equal(await lookUp(source.uuid, env['FORKED']), null);
    }
    // The copy of the copy has in its memory what its own source had there.
    assert.equal((await lookUp(copies[1]?.id ?? '', copies[0]?.env['FORKED']))?.value, 'v');
    assert.deepEqual(
      await world.database.transaction((client) => copySecrets(client, { from: newUuid(), to: newUuid() })),
      {},
    );
    // The foreign key waits for the end of the transaction, and then holds.
    await assert.rejects(
      world.database.transaction((client) => copySecrets(client, { from: source.uuid, to: newUuid() })),
      /foreign key/,
    );
  });
});

describe('what is made from a sandbox with secrets', () => {
  let mine: World;
  let runner: ScriptedRunner;
  const lookUpIn = (uuid: string, placeholder: string | undefined): Promise<Substitution | null> =>
    lookUpPlaceholder(mine.database.pool, encryption, uuid, placeholder ?? '');
  before(async () => {
    mine = await startWorld({ keys, builtinImages: ['busybox'] });
    runner = await mine.runner();
  });
  after(async () => mine[Symbol.asyncDispose]());

  /** The environment that the host is given for the sandbox of a job. */
  async function begun(job: string): Promise<{ uuid: string; env: Record<string, string> }> {
    const { rows } = await mine.database.pool.query('select sandbox_id from jobs where id = $1', [job]);
    const uuid = String(rows[0].sandbox_id);
    return { uuid, env: (await runner.assigned(uuid)).spec.env };
  }
  async function source(name: string): Promise<{ id: string; uuid: string; env: Record<string, string> }> {
    await put(name, { value: `value of ${name}` }, mine.call);
    const vm = await create(mine.call, mine, { secrets: [name], env: { MORE: 'x' }, persistent: true });
    await waitFor(mine.call, vm.id, 'running');
    return { ...vm, env: (await runner.assigned(vm.uuid)).spec.env };
  }

  it('a fork: the same secrets under placeholders of its own', async () => {
    const vm = await source('IN_FORK');
    const answer = await mine.call('POST', `/vms/${vm.id}/fork`);
    assert.equal(answer.status, 200, answer.text);
    const child = await begun(answer.body.job_id);
    assert.deepEqual(Object.keys(child.env).toSorted(), ['IN_FORK', 'MORE']);
    assert.notEqual(child.env['IN_FORK'], vm.env['IN_FORK']);
    for (const placeholder of [child.env['IN_FORK'], vm.env['IN_FORK']])
      assert.equal((await lookUpIn(child.uuid, placeholder))?.value, 'value of IN_FORK');
    assert.equal(await lookUpIn(vm.uuid, child.env['IN_FORK']), null);
  });

  it('a full snapshot: the secrets of its source, also when that and the secret are deleted', async () => {
    const vm = await source('IN_MEMORY');
    const taken = await mine.call('POST', `/vms/${vm.id}/snapshots`, { name: 'full', kind: 'full' });
    await mine.call('GET', `/snapshots/${taken.body.id}?wait=ready`);
    await mine.call('DELETE', `/vms/${vm.id}`);
    await waitFor(mine.call, vm.id, 'deleted');
    await mine.call('DELETE', '/secrets/IN_MEMORY');
    await eraseUnused(mine.database.pool);
    const image = { type: 'snapshot', name: 'full' };
    const both = await mine.call('POST', '/vms', { image, env: { IN_MEMORY: 'x' } });
    assert.equal(both.status, 400);
    assert.match(both.body.error, /env\.IN_MEMORY cannot be set, because snapshot "full" has a secret/);
    const answer = await mine.call('POST', '/vms', { image });
    assert.equal(answer.status, 200, answer.text);
    const copy = await begun(answer.body.job_id);
    assert.notEqual(copy.env['IN_MEMORY'], vm.env['IN_MEMORY']);
    for (const placeholder of [copy.env['IN_MEMORY'], vm.env['IN_MEMORY']])
      assert.equal((await lookUpIn(copy.uuid, placeholder))?.value, 'value of IN_MEMORY');

    // A secret of that name that is asked for takes the variable; what is in memory means the old one.
    await put('IN_MEMORY', { value: 'another' }, mine.call);
    const third = await begun(
      (await mine.call('POST', '/vms', { image, secrets: ['IN_MEMORY'] })).body.job_id,
    );
    assert.equal((await lookUpIn(third.uuid, third.env['IN_MEMORY']))?.value, 'another');
    assert.equal((await lookUpIn(third.uuid, vm.env['IN_MEMORY']))?.value, 'value of IN_MEMORY');
  });

  it('a disk snapshot: only the secrets that are asked for', async () => {
    await put('ON_DISK', { value: 'v' }, mine.call);
    const vm = await create(mine.call, mine, { secrets: ['ON_DISK'] });
    await waitFor(mine.call, vm.id, 'running');
    const old = (await runner.assigned(vm.uuid)).spec.env['ON_DISK'];
    const taken = await mine.call('POST', `/vms/${vm.id}/snapshots`, { name: 'disk' });
    await mine.call('GET', `/snapshots/${taken.body.id}?wait=ready`);
    const image = { type: 'snapshot', name: 'disk' };
    const bare = await begun((await mine.call('POST', '/vms', { image })).body.job_id);
    assert.deepEqual(bare.env, {});
    assert.equal(await lookUpIn(bare.uuid, old), null);
    const asked = await begun((await mine.call('POST', '/vms', { image, secrets: ['ON_DISK'] })).body.job_id);
    assert.equal((await lookUpIn(asked.uuid, asked.env['ON_DISK']))?.value, 'v');
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
    assert.equal((await lookUp(vm.uuid, placeholder))?.value, 'rotated value');
    const under = async (): Promise<string[]> =>
      (
        await world.database.pool.query<{ key_id: string }>(
          'select key_id from secrets union select key_id from registry_credentials',
        )
      ).rows.map((row) => row.key_id);
    await rewrapAll(world.database, encryption, quiet, new AbortController().signal);
    assert.deepEqual(await under(), [newest]);
    assert.equal((await lookUp(vm.uuid, placeholder))?.value, 'rotated value');
  });

  it('rotation: a server does it by itself, and goes on past a value that does not open', async () => {
    const own = keyPath();
    await using other = await startWorld({ builtinImages: [], keys: testKeys(own) });
    for (let n = 0; n < 5; n++) await other.call('PUT', `/secrets/S${n}`, { value: `v${n}` });
    await other.database.pool.query(`update secrets set envelope = '\\x0100' where name = 'S2'`);
    const newest = await addKey(own);
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
    const tables = await pool.query<{ table_name: string }>(
      `select table_name from information_schema.tables where table_schema = 'public'`,
    );
    for (const { table_name } of tables.rows) {
      const { rows } = await pool.query<{ row: string }>(`select t::text as row from ${table_name} t`);
      for (const value of values) {
        assert.ok(!rows.some(({ row }) => row.includes(value)), `${table_name} has ${value}`);
        const hex = Buffer.from(value).toString('hex');
        assert.ok(!rows.some(({ row }) => row.includes(hex)), `${table_name} has ${value} in hex`);
      }
    }
    await pool.query('checkpoint');
    // Seen from its own processes, which may have a root of their own.
    const { rows } = await pool.query<{ folder: string }>(
      `select '/proc/' || pg_backend_pid() || '/root' || current_setting('data_directory') as folder`,
    );
    const folder = rows[0]?.folder ?? '';
    // What is stored as it is, is found: the search works, also in the write-ahead log.
    assert.ok(filesWith(folder, 'needle.example').length > 0);
    for (const value of values) {
      assert.deepEqual(filesWith(folder, value), []);
      assert.ok(!lines.some((line) => line.includes(value)));
    }
    assert.ok(lines.length > 0);
  });
});
