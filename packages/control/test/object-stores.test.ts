import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import {
  newToken,
  newUuid,
  ObjectStoreList,
  type ObjectStoreMountList,
  ObjectStoreRecord,
} from '@releap/contract';
import type { HelloMessage } from '@releap/contract/runner';
import { testKeys } from '@releap/testing/keys';
import {
  create,
  startWorld,
  waitFor,
  type Answer,
  type Caller,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';
import { Compile } from 'typebox/compile';
import { createEncryption } from '../src/platform/encryption/encryption.ts';
import { readMountedStores } from '../src/storage/object-stores/mounted-stores.ts';

const encryptionKeys = testKeys();
let world: World;
let runner: ScriptedRunner;
let call: Caller;
before(async () => {
  world = await startWorld({ keys: encryptionKeys });
  call = world.call;
  await world.database.pool.query(`insert into regions (id, name) values ('fresh', 'Fresh')`);
  runner = await world.runner();
  await credentials(call);
});
after(async () => world[Symbol.asyncDispose]());

const keys = { access_key_secret: 'S3_ID', secret_key_secret: 'S3_KEY' };
const credentials = async (by: Caller) => {
  for (const name of ['S3_ID', 'S3_KEY', 'S3_TOKEN', 'UNRELATED'])
    assert.equal(
      (await by('PUT', `/secrets/${name}`, { value: `value of ${name}`.replaceAll(' ', '-') })).status,
      204,
    );
};
const tenant = async (): Promise<Caller> => {
  const own = await world.stranger();
  await credentials(own);
  return own;
};
const add = (body: object, by: Caller = call): Promise<Answer> =>
  by('POST', '/object-stores', { bucket: 'data', ...keys, ...body });
const names = async (by: Caller, query = ''): Promise<string[]> =>
  ((await by('GET', `/object-stores${query}`)).body as unknown as ObjectStoreList).object_stores.map(
    ({ name }) => name,
  );
const secretNames = async (by: Caller, query = '') =>
  (await by('GET', `/secrets${query}`)).body.secrets.map((one: { name: string; object_store?: boolean }) =>
    query === '' ? one.name : [one.name, one.object_store],
  );
/** Writes the mount of a sandbox, as a create with `object_store_mounts` does. */
const mount = (sandbox: string, store: string) =>
  world.database.pool.query(
    `insert into object_store_mounts (sandbox_id, mount_path, object_store_id, read_only) values ($1, '/data', $2, false)`,
    [sandbox, store],
  );

describe('object stores', () => {
  it('POST /object-stores answers with the whole configuration, and GET the same', async () => {
    const plain = await add({ name: 'plain' });
    assert.equal(plain.status, 200, plain.text);
    assert.ok(Compile(ObjectStoreRecord).Check(plain.body), plain.text);
    const { id, created_at, updated_at, ...rest } = plain.body;
    assert.ok(created_at && updated_at);
    assert.deepEqual(rest, {
      name: 'plain',
      bucket: 'data',
      ...keys,
      endpoint: '',
      region: '',
      prefix: '',
      path_style: false,
      read_only: false,
      provider: '',
      dir_cache_secs: 0,
      state: 'ready',
    });
    const full = {
      bucket: 'b',
      ...keys,
      session_token_secret: 'S3_TOKEN',
      endpoint: 'https://minio.example:9000/base',
      region: 'eu-central-1',
      path_style: true,
      read_only: true,
      provider: 'Minio',
      dir_cache_secs: 86_400,
    };
    const made = await add({ ...full, name: 'A._-z', prefix: '//models/v 1/' });
    assert.equal(made.status, 200, made.text);
    assert.deepEqual({ ...made.body, ...full }, made.body);
    assert.equal(made.body.prefix, 'models/v 1');
    for (const ref of [made.body.id, 'A._-z'])
      assert.deepEqual((await call('GET', `/object-stores/${ref}`)).body, made.body);
    assert.deepEqual((await call('GET', `/object-stores/${id.toUpperCase()}`)).body.name, 'plain');
    assert.deepEqual(await names(call), ['A._-z', 'plain']);
  });

  const long = 'x'.repeat(129);
  for (const [what, body, said] of [
    ['invalid name', { name: 'a/b' }, /name must be 1 to 128 characters/],
    ['empty name', { name: '' }, /name must be 1 to 128 characters/],
    ['long name', { name: long }, /name must be 1 to 128 characters/],
    ['missing name', { name: undefined }, /name is required/],
    ['missing bucket', { bucket: undefined }, /bucket is required/],
    ['empty bucket', { bucket: '' }, /bucket/],
    ['bucket with a slash', { bucket: 'a/b' }, /bucket must be/],
    ['bucket ..', { bucket: '..' }, /bucket must be/],
    ['unknown provider', { provider: 'Azure' }, /provider must be one of/],
    ['endpoint of another scheme', { endpoint: 'ftp://a.example' }, /endpoint must be an http/],
    ['endpoint without a scheme', { endpoint: 'a.example:9000' }, /endpoint must be an http/],
    ['endpoint without a host', { endpoint: 'https:///a' }, /endpoint must be an http/],
    ['endpoint with a query', { endpoint: 'https://a.example/?x=1' }, /without query/],
    ['missing credential', { access_key_secret: undefined }, /access_key_secret is required/],
    ['empty credential', { secret_key_secret: '' }, /secret_key_secret/],
    ['unknown access key', { access_key_secret: 'NONE' }, /no secret "NONE"/],
    [
      'unknown secrets',
      { secret_key_secret: 'NONE', session_token_secret: 'GONE' },
      /no secret "NONE", "GONE"/,
    ],
    ['no name of a secret', { session_token_secret: 'a b' }, /session_token_secret must be the name/],
    ['dir_cache_secs below 0', { dir_cache_secs: -1 }, /dir_cache_secs/],
    ['dir_cache_secs above a day', { dir_cache_secs: 86_401 }, /dir_cache_secs/],
    ['a part of a second', { dir_cache_secs: 0.5 }, /dir_cache_secs/],
    ['prefix that climbs', { prefix: 'a/../b' }, /prefix must have no empty part/],
    ['prefix with a line break', { prefix: 'a\nb' }, /prefix must have no control characters/],
    ['region with a slash', { region: 'eu/1' }, /region must be like/],
  ] as const) {
    it(`POST /object-stores 400: ${what}`, async () => {
      const answer = await add({ name: 'refused', ...body });
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, said);
    });
  }

  it('POST /object-stores 400 for an endpoint with a password, which is not repeated', async () => {
    const answer = await add({ name: 'refused', endpoint: 'https://user:hunter2@a.example' });
    assert.equal(answer.status, 400);
    assert.match(answer.body.error, /without user name and password/);
    assert.doesNotMatch(answer.text, /hunter2/);
    assert.ok(!(await names(call, '?include_deleted=true')).includes('refused'));
  });

  it('409 for a name that exists, in one project only; a deleted name is free, and can be listed', async () => {
    const [own, other] = [await tenant(), await tenant()];
    const first = await add({ name: 'twice' }, own);
    const again = await add({ name: 'twice' }, own);
    assert.equal(again.status, 409);
    assert.match(again.body.error, /named "twice"/);
    assert.equal((await add({ name: 'twice' }, other)).status, 200);

    const gone = await own('DELETE', '/object-stores/twice');
    assert.deepEqual([gone.status, gone.body], [200, { id: first.body.id, state: 'deleted' }]);
    for (const ref of ['twice', first.body.id])
      for (const method of ['GET', 'DELETE'])
        assert.equal((await own(method, `/object-stores/${ref}`)).status, 404);
    const second = await add({ name: 'twice' }, own);
    assert.equal(second.status, 200);
    assert.deepEqual(await names(own), ['twice']);
    const all = (await own('GET', '/object-stores?include_deleted=true')).body;
    assert.ok(Compile(ObjectStoreList).Check(all));
    assert.deepEqual(
      all.object_stores.map(({ id, state }) => [id, state]),
      [
        [second.body.id, 'ready'],
        [first.body.id, 'deleted'],
      ],
    );
  });

  it('one of many creates of one name at once is done; the same Idempotency-Key creates once', async () => {
    const own = await tenant();
    const answers = await Promise.all(Array.from({ length: 5 }, () => add({ name: 'race' }, own)));
    assert.deepEqual(
      answers.map(({ status }) => status).sort((a, b) => a - b),
      [200, 409, 409, 409, 409],
    );
    const headers = { 'idempotency-key': 'once' };
    const body = { name: 'keyed', bucket: 'b', ...keys };
    const first = await own('POST', '/object-stores', body, { headers });
    const replayed = await own('POST', '/object-stores', body, { headers });
    assert.deepEqual([replayed.status, replayed.body], [200, first.body]);
  });

  it('400 for a text that is the id of one store and the name of another', async () => {
    const own = await tenant();
    const { id } = (await add({ name: 'one' }, own)).body;
    assert.equal((await add({ name: id }, own)).status, 200);
    for (const method of ['GET', 'DELETE']) {
      const answer = await own(method, `/object-stores/${id}`);
      assert.equal(answer.status, 400);
      assert.match(answer.body.error, /the id of one object store and the name of another/);
    }
    assert.equal((await own('DELETE', '/object-stores/one')).status, 200);
    assert.equal((await own('GET', `/object-stores/${id}`)).body.name, id);
  });

  it('404 alike for unknown texts and stores of others; 401 without a key', async () => {
    const own = await tenant();
    const { id } = (await add({ name: 'mine' }, own)).body;
    for (const ref of ['mine', id, newUuid(), 'none', 'a%00', 'x'.repeat(2000)])
      for (const method of ['GET', 'DELETE'])
        assert.equal((await call(method, `/object-stores/${ref}`)).status, 404, ref);
    const headers = { authorization: `Bearer ${newToken('apiKey')}` };
    for (const [method, path] of [
      ['POST', '/object-stores'],
      ['GET', '/object-stores'],
      ['GET', '/object-stores/mine'],
      ['DELETE', '/object-stores/mine'],
    ] as const) {
      const body = method === 'POST' ? { name: 'n', bucket: 'b', ...keys } : undefined;
      assert.equal((await call(method, path, body, { headers })).status, 401);
    }
    assert.equal((await call('GET', '/object-stores?include_deleted=maybe')).status, 400);
  });

  it('hides its credentials from the list of secrets while it exists, and shows them with a flag', async () => {
    const own = await tenant();
    assert.deepEqual(await secretNames(own), ['S3_ID', 'S3_KEY', 'S3_TOKEN', 'UNRELATED']);
    await add({ name: 'hides', session_token_secret: 'S3_TOKEN' }, own);
    assert.deepEqual(await secretNames(own), ['UNRELATED']);
    assert.deepEqual(await secretNames(own, '?include_object_store=true'), [
      ['S3_ID', true],
      ['S3_KEY', true],
      ['S3_TOKEN', true],
      ['UNRELATED', false],
    ]);
    assert.equal((await own('GET', '/secrets/S3_ID')).status, 200);
    await own('DELETE', '/object-stores/hides');
    assert.deepEqual(await secretNames(own), ['S3_ID', 'S3_KEY', 'S3_TOKEN', 'UNRELATED']);
  });

  it('never has a value, and keeps its configuration when its secrets are deleted', async () => {
    const own = await tenant();
    const made = await add({ name: 'kept' }, own);
    await own('DELETE', '/secrets/S3_KEY');
    const read = await own('GET', '/object-stores/kept');
    assert.deepEqual(read.body, made.body);
    assert.doesNotMatch(read.text + made.text, /value-of/);
  });

  it('DELETE 409 while a live sandbox has it mounted', async () => {
    const { id } = (await add({ name: 'mounted' })).body;
    const vm = await create(call, world, { name: 'user-of-it' });
    await mount(vm.uuid, id);
    const refused = await call('DELETE', '/object-stores/mounted');
    assert.equal(refused.status, 409);
    assert.match(refused.body.error, /mounted by sandbox "user-of-it"/);
    assert.equal((await call('GET', '/object-stores/mounted')).body.state, 'ready');
    assert.equal((await call('DELETE', `/vms/${vm.id}`)).status, 200);
    assert.equal((await call('DELETE', '/object-stores/mounted')).status, 200);
  });

  it('of a project are bounded, and those that were deleted do not count', async () => {
    const own = await tenant();
    await add({ name: 'deleted' }, own);
    await own('DELETE', '/object-stores/deleted');
    await world.database.pool.query(
      `insert into object_stores (id, project_id, name, bucket, access_key_secret, secret_key_secret)
       select gen_random_uuid(), $1, 'bulk-' || n, 'b', 'S3_ID', 'S3_KEY' from generate_series(1, 199) n`,
      [own.projectId],
    );
    assert.equal((await add({ name: 'last' }, own)).status, 200);
    const refused = await add({ name: 'more' }, own);
    assert.equal(refused.status, 400);
    assert.match(refused.body.error, /200 object stores, which is the most allowed/);
  });
});

describe('mounts of object stores', () => {
  const read = (uuid: string) =>
    readMountedStores(world.database.pool, createEncryption(encryptionKeys), [{ id: uuid }], null);
  const mounts = async (vm: string) =>
    (await call('GET', `/vms/${vm}/object-store-mounts`)).body as unknown as ObjectStoreMountList;

  it('409 and a failed create until set-up has made what the host needs for them, both of which can be repeated', async () => {
    await add({ name: 'early' });
    const asked = { object_store: 'early', mount_path: '/early' };
    const host = await world.runner({ region: 'fresh' });
    const vm = await create(call, world, { region: 'fresh', persistent: true, object_store_mounts: [asked] });
    await waitFor(call, vm.id, 'running');
    const capabilities = async (hello: Partial<HelloMessage>): Promise<void> => {
      host.options.hello = hello;
      await host.connect();
    };
    await capabilities({ capabilities: [] });
    const why = /mount object stores yet: set-up makes what mounts need after the first start of a host/;
    // Those that need nothing of it do not wait behind one that does.
    const waiting = await create(call, world, { region: 'fresh', object_store_mounts: [asked] });
    await waitFor(call, (await create(call, world, { region: 'fresh' })).id, 'running');
    assert.equal((await call('GET', `/vms/${waiting.id}`)).body.status, 'pending');
    const refused = async (route: string, body?: object): Promise<void> => {
      const answer = await call('POST', `/vms/${vm.id}/${route}`, body);
      assert.deepEqual(
        [answer.status, answer.body.code, answer.body.retryable],
        [409, 'no_capacity', true],
        answer.text,
      );
      assert.match(answer.body.error, why);
    };
    await refused('object-store-mounts', { ...asked, mount_path: '/other' });
    assert.equal((await mounts(vm.id)).object_store_mounts.length, 1);
    // What has the mounts in its memory needs nothing of the host.
    await call('POST', `/vms/${vm.id}/pause`);
    await waitFor(call, vm.id, 'paused');
    assert.equal((await call('POST', `/vms/${vm.id}/resume`)).status, 200);
    await waitFor(call, vm.id, 'running');
    await call('POST', `/vms/${vm.id}/stop`);
    await waitFor(call, vm.id, 'stopped');
    await refused('start');
    await capabilities({});
    await waitFor(call, waiting.id, 'running');
    assert.equal((await call('POST', `/vms/${vm.id}/start`)).status, 200);
    await waitFor(call, vm.id, 'running');
    assert.equal((await call('DELETE', `/vms/${vm.id}`)).status, 200);
  });

  it('are in the assignment with keys of their own, and for the host with the credentials', async () => {
    const store = await add({ name: 'with-mounts', prefix: 'p', session_token_secret: 'S3_TOKEN' });
    const vm = await create(call, world, {
      object_store_mounts: [
        { object_store: 'with-mounts', mount_path: '/a/' },
        { object_store: store.body.id, mount_path: '/b', read_only: true },
      ],
    });
    const { spec } = await runner.assigned(vm.uuid);
    const [a, b] = spec.object_stores ?? [];
    assert.ok(a !== undefined && b !== undefined);
    assert.deepEqual(
      [a.path, a.bucket, a.prefix, a.provider, a.read_only, b.path, b.read_only],
      ['/a', 'data', 'p', 'AWS', false, '/b', true],
    );
    assert.notEqual(a.secret_key, b.secret_key);
    assert.doesNotMatch(JSON.stringify(spec), /value-of/);
    assert.deepEqual(
      (await mounts(vm.id)).object_store_mounts.map(({ object_store, mount_path }) => [
        object_store,
        mount_path,
      ]),
      [
        ['with-mounts', '/a'],
        ['with-mounts', '/b'],
      ],
    );
    assert.equal((await call('DELETE', '/object-stores/with-mounts')).status, 409);

    const [first] = (await read(vm.uuid)).sandboxes;
    assert.deepEqual(first?.stores[0]?.credentials, {
      access_key: 'value-of-S3_ID',
      secret_key: 'value-of-S3_KEY',
      session_token: 'value-of-S3_TOKEN',
    });
    assert.equal(first.stores[0].guest_secret_key, a.secret_key);
    const pool = world.database.pool;
    const again = async () =>
      await readMountedStores(
        pool,
        createEncryption(encryptionKeys),
        [{ id: vm.uuid, revision: first.revision }],
        null,
      );
    assert.deepEqual((await again()).sandboxes, []);
    // Another runner gets nothing of it.
    const other = await readMountedStores(
      pool,
      createEncryption(encryptionKeys),
      [{ id: vm.uuid }],
      newUuid(),
    );
    assert.deepEqual(other.sandboxes[0]?.stores, []);
    await call('PUT', '/secrets/S3_KEY', { value: 'rotated' });
    assert.equal((await again()).sandboxes[0]?.stores[0]?.credentials?.secret_key, 'rotated');
    await call('DELETE', '/secrets/S3_TOKEN');
    // "deleting a secret used by a live store makes later mounts fail": those that exist work on.
    await world.control.runTask('secret-erasure');
    const [kept] = (await again()).sandboxes;
    assert.equal(kept?.stores[0]?.credentials?.session_token, 'value-of-S3_TOKEN');
    const refused = await call('POST', '/vms', {
      image: 'busybox',
      object_store_mounts: [{ object_store: 'with-mounts', mount_path: '/a' }],
    });
    assert.equal(refused.status, 409);
    assert.match(refused.body.error, /its secret "S3_TOKEN" was deleted/);
    await credentials(call);
    const [renewed] = (await again()).sandboxes;
    assert.equal(
      renewed?.stores[0]?.credentials?.session_token,
      'value-of-S3_TOKEN',
      'the new one of its name',
    );
    await call('DELETE', `/vms/${vm.id}`);
    assert.equal((await call('DELETE', '/object-stores/with-mounts')).status, 200);
  });

  it('at run time: 404 for unknown ones, 409 when the sandbox rejects it or does not run, and nothing is left of it', async () => {
    await add({ name: 'late' });
    const vm = await create(call, world);
    await waitFor(call, vm.id, 'running');
    const path = `/vms/${vm.id}/object-store-mounts`;
    const body = { object_store: 'late', mount_path: '/late' };
    const own = await tenant();
    for (const [by, at, what, status] of [
      [call, path, { ...body, object_store: 'none' }, 404],
      [call, `/vms/${newUuid()}/object-store-mounts`, body, 404],
      [own, path, body, 404],
      [call, path, { ...body, mount_path: 'late' }, 400],
      [call, path, { ...body, mount_path: '/dev/x' }, 400],
      [call, path, { mount_path: '/late' }, 400],
      // The host of this test has no guest.
      [call, path, body, 409],
    ] as const)
      assert.equal((await by('POST', at, what)).status, status, JSON.stringify(what));
    assert.equal((await own('GET', path)).status, 404);
    assert.equal((await call('DELETE', `${path}/late`)).status, 404);
    assert.deepEqual(await mounts(vm.id), { object_store_mounts: [] });
    await call('DELETE', `/vms/${vm.id}`);
    const ended = await call('POST', path, body);
    assert.equal(ended.status, 409);
    assert.match(ended.body.error, /stores are mounted and unmounted while it is running/);
    assert.equal((await call('DELETE', `${path}/late`)).status, 409);
  });
});
