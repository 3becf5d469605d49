import assert from 'node:assert/strict';
import { rename } from 'node:fs/promises';
import { describe, it } from 'node:test';
import { newToken, RegistryList, RegistryRecord, type RootSource } from '@releap/contract';
import { tablesWith } from '@releap/testing/inspect';
import type { Assignment } from '@releap/testing/runner-messages';
import { Compile } from 'typebox/compile';
import { keyPath, testKeys } from '@releap/testing/keys';
import { create, silent, startWorld, until, waitFor, type Caller, refusalOf } from '@releap/testing/world';

const file = keyPath();
const keys = testKeys(file);
const world = await startWorld({ keys });
const call = world.call;

const login = { username: 'robot', password: 'a password' };
const put = (host: string, body: object = {}, by: Caller = call) =>
  by('PUT', `/registries/${host}`, { ...login, ...body });
const rootOf = (assignment: Assignment) => assignment.spec.root as Extract<RootSource, { type: 'registry' }>;

describe('registry credentials', () => {
  it('PUT /registries/:host: 204 without a body; GET has metadata and never the password', async () => {
    const answer = await put('LOCALHOST:5000', { description: 'the local one' });
    assert.deepEqual([answer.status, answer.text], [204, '']);
    const read = await call('GET', '/registries/localhost:5000');
    assert.ok(Compile(RegistryRecord).Check(read.body), read.text);
    const { updated_at, ...rest } = read.body as unknown as Record<string, unknown>;
    assert.ok(updated_at);
    assert.deepEqual(rest, {
      host: 'localhost:5000',
      kind: 'basic',
      username: 'robot',
      description: 'the local one',
    });
  });

  it('PUT /registries: the host is in the body', async () => {
    const answer = await call('PUT', '/registries', { host: 'ghcr.io', kind: 'ghcr', ...login });
    assert.deepEqual([answer.status, answer.text], [204, '']);
    assert.equal((await call('GET', '/registries/ghcr.io')).body.kind, 'ghcr');
    const missing = await call('PUT', '/registries', login);
    assert.equal(missing.status, 400);
    assert.match(missing.body.error, /host is required/);
  });

  it('has one name for a host: case does not matter, and Docker Hub is index.docker.io', async () => {
    const own = await world.stranger();
    await put('docker.io', { username: 'first' }, own);
    await put('Registry-1.Docker.IO', { username: 'second' }, own);
    const { body } = await own('GET', '/registries');
    assert.ok(Compile(RegistryList).Check(body));
    assert.deepEqual(
      body.registries.map(({ host, username }) => [host, username]),
      [['index.docker.io', 'second']],
    );
    assert.equal((await own('GET', '/registries/registry.hub.docker.com')).body.host, 'index.docker.io');
    assert.equal((await own('DELETE', '/registries/docker.io')).status, 204);
    assert.deepEqual((await own('GET', '/registries')).body, { registries: [] });
  });

  for (const [what, host, body, message] of [
    ['invalid host: a scheme', 'https%3A%2F%2Fghcr.io', {}, /has a scheme/],
    ['invalid host: a path', 'ghcr.io%2Forg', {}, /has a path/],
    ['invalid host: a bad port', 'a.b:99999', {}, /port/],
    ['invalid host: a NUL', 'a%00', {}, /NUL/],
    ['invalid host: too long', 'a'.repeat(2000), {}, /is not a host name/],
    ['unknown kind', 'a.b', { kind: 'acr' }, /kind must be one of/],
    ['kind/host mismatch, ghcr', 'docker.io', { kind: 'ghcr' }, /kind "ghcr" is for ghcr\.io/],
    ['kind/host mismatch, ghcr with a port', 'ghcr.io:443', { kind: 'ghcr' }, /kind "ghcr" is for ghcr\.io/],
    ['kind/host mismatch, gcr', 'ghcr.io', { kind: 'gcr' }, /kind "gcr" is for gcr\.io/],
    [
      'kind/host mismatch, gcr with another domain',
      'gcr.io.example.com',
      { kind: 'gcr' },
      /kind "gcr" is for gcr\.io/,
    ],
    [
      'kind/host mismatch, ecr of another service',
      '1.dkr.s3.eu-west-1.amazonaws.com',
      { kind: 'ecr' },
      /kind "ecr" is for/,
    ],
    ['kind/host mismatch, ecr', 'amazonaws.com', { kind: 'ecr' }, /kind "ecr" is for <account>/],
    ['empty username', 'a.b', { username: '' }, /username must be/],
    ['no username', 'a.b', { username: null }, /username is required/],
    ['empty password', 'a.b', { password: '' }, /password must be a non-empty string/],
    ['password > 64 KiB', 'a.b', { password: 'x'.repeat(65_537) }, /password has 65537 bytes/],
  ] as const) {
    it(`PUT /registries/:host 400: ${what}`, async () => {
      const answer = await put(host, body);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, message);
    });
  }

  it('PUT /registries/:host takes each kind for its hosts', async () => {
    const own = await world.stranger();
    for (const [kind, host] of [
      ['basic', '127.0.0.1:5000'],
      ['basic', '[::1]:5000'],
      ['ghcr', 'GHCR.io'],
      ['gcr', 'gcr.io'],
      ['gcr', 'eu.gcr.io'],
      ['gcr', 'europe-west1-docker.pkg.dev'],
      ['ecr', '123456789012.dkr.ecr.eu-central-1.amazonaws.com'],
    ] as const) {
      const answer = await put(host, { kind }, own);
      assert.deepEqual([answer.status, answer.text], [204, ''], host);
      assert.equal((await own('GET', `/registries/${host}`)).body.kind, kind);
    }
  });

  it('GET /registries/:host 400: invalid host; 404: none for host', async () => {
    assert.equal((await call('GET', '/registries/a%2Fb')).status, 400);
    assert.equal((await call('GET', '/registries/a%00')).status, 400);
    const none = await call('GET', '/registries/nobody.example');
    assert.deepEqual(
      [none.status, refusalOf(none)],
      [
        404,
        {
          error: 'no registry credential for "nobody.example"',
          code: 'registry_not_found',
          retryable: false,
        },
      ],
    );
  });

  it('DELETE /registries/:host: 204, also again; 400 for what is no host', async () => {
    await put('gone.example');
    for (let n = 0; n < 2; n++) assert.equal((await call('DELETE', '/registries/GONE.example')).status, 204);
    assert.equal((await call('GET', '/registries/gone.example')).status, 404);
    assert.equal((await call('DELETE', '/registries/a%2Fb')).status, 400);
  });

  it('need a key', async () => {
    const headers = { authorization: `Bearer ${newToken('apiKey')}` };
    for (const [method, path] of [
      ['PUT', '/registries/a.b'],
      ['PUT', '/registries'],
      ['GET', '/registries'],
      ['GET', '/registries/a.b'],
      ['DELETE', '/registries/a.b'],
    ] as const)
      assert.equal((await call(method, path, method === 'PUT' ? login : undefined, { headers })).status, 401);
  });

  it('of two projects never meet', async () => {
    const [one, two] = [await world.stranger(), await world.stranger()];
    await put('mine.example', { username: 'one' }, one);
    assert.equal((await two('GET', '/registries/mine.example')).status, 404);
    assert.deepEqual((await two('GET', '/registries')).body, { registries: [] });
    await two('DELETE', '/registries/mine.example');
    await put('mine.example', { username: 'two' }, two);
    assert.equal((await one('GET', '/registries/mine.example')).body.username, 'one');
  });

  it('503 on writes while encryption is unavailable; reads succeed', async () => {
    await put('kept.example');
    await rename(file, `${file}.away`);
    try {
      const answer = await put('new.example');
      assert.equal(answer.status, 503);
      assert.match(answer.body.error, /encryption is temporarily unavailable/);
      assert.equal((await call('GET', '/registries/kept.example')).status, 200);
    } finally {
      await rename(`${file}.away`, file);
    }
    assert.equal((await call('GET', '/registries/new.example')).status, 404);
  });
});

describe('a pull', () => {
  const password = 'password-of-the-pull';

  it("gets the credential of its reference's host, of its own project alone", async () => {
    const [own, other] = [await world.stranger(), await world.stranger()];
    await put('docker.io', { username: 'hub', password }, own);
    await put('localhost:5000', { username: 'local', password: 'other' }, own);
    await put('registry.example', { username: 'stranger', password: 'no' }, other);
    await using runner = await world.runner();
    for (const [image, username] of [
      ['node:20', 'hub'],
      ['library/node:20', 'hub'],
      ['docker.io/org/app', 'hub'],
      ['localhost:5000/app', 'local'],
      ['localhost:5001/app', undefined],
      ['registry.example/org/app:tag', undefined],
    ] as const) {
      const vm = await create(own, world, { image });
      const { credential, no_credential } = rootOf(await runner.assigned(vm.uuid));
      assert.equal(credential?.username, username, image);
      if (username === 'hub') assert.equal(credential?.password, password);
      assert.equal(no_credential, undefined);
    }
    const builtin = await create(own, world, { image: 'busybox' });
    assert.deepEqual((await runner.assigned(builtin.uuid)).spec.root, { type: 'builtin', name: 'busybox' });
  });

  it('gets it again after a reconnect, pinned to what was pulled; a deletion does not need it', async () => {
    const own = await world.stranger();
    await put('again.example', { password }, own);
    await using runner = await world.runner();
    const vm = await create(own, world, { image: 'again.example/app' });
    await waitFor(own, vm.id, 'running');
    runner.assignments.clear();
    runner.drop();
    await runner.connect();
    const again = rootOf(await runner.assigned(vm.uuid));
    assert.deepEqual(again.credential, { kind: 'basic', username: 'robot', password });
    assert.match(again.digest ?? '', /^sha256:/);
    await own('DELETE', `/vms/${vm.id}`);
    const gone = await runner.assigned(vm.uuid, ({ desired }) => desired === 'deleted');
    assert.equal(rootOf(gone).credential, undefined);
    await waitFor(own, vm.id, 'deleted');
  });

  it('uses what was written last, and nothing once it is deleted', async () => {
    const own = await world.stranger();
    await using runner = await world.runner();
    await put('turned.example', { password: 'one' }, own);
    const use = async (): Promise<string | undefined> => {
      const vm = await create(own, world, { image: 'turned.example/app' });
      return rootOf(await runner.assigned(vm.uuid)).credential?.password;
    };
    assert.equal(await use(), 'one');
    await put('turned.example', { password: 'two' }, own);
    assert.equal(await use(), 'two');
    await own('DELETE', '/registries/turned.example');
    assert.equal(await use(), undefined);
  });

  it('of a build gets it too', async () => {
    const own = await world.stranger();
    await put('build.example', { password }, own);
    await using runner = await world.runner();
    const { body } = await own('POST', '/images', { name: 'private', source: 'build.example/app:1' });
    await until(async () => (await own('GET', `/jobs/${body.job_id}`)).body.status === 'done');
    const job = runner.builds.find(({ job_id }) => job_id === body.job_id);
    assert.ok(job?.root.type === 'registry');
    const { project_id: projectId, ...root } = job.root;
    assert.equal(projectId, own.projectId);
    assert.deepEqual(root, {
      type: 'registry',
      ref: 'build.example/app:1',
      credential: { kind: 'basic', username: 'robot', password },
    });
    // The image itself is shown without it, and a sandbox of it pulls with it.
    assert.ok(!(await own('GET', '/images')).text.includes('credential'));
    const vm = await create(own, world, { image: 'private' });
    assert.equal(rootOf(await runner.assigned(vm.uuid)).credential?.password, password);
  });

  it('gets the reason why there is none when its key is missing, so that the failure says it', async () => {
    const own = await world.stranger();
    await put('away.example', { password }, own);
    await using runner = await world.runner();
    await rename(file, `${file}.away`);
    try {
      const vm = await create(own, world, { image: 'away.example/app' });
      const { credential, no_credential } = rootOf(await runner.assigned(vm.uuid));
      assert.equal(credential, undefined);
      assert.equal(
        no_credential,
        "the project's credential for away.example cannot be used: its key is temporarily unavailable",
      );
      const built = await create(own, world, {
        image: { type: 'dockerfile', dockerfile: 'FROM away.example/app' },
      });
      const { root } = (await runner.assigned(built.uuid)).spec;
      assert.ok(root.type === 'dockerfile');
      assert.deepEqual(
        [root.credentials, root.no_credentials],
        [[], [{ host: 'away.example', reason: no_credential }]],
      );
    } finally {
      await rename(`${file}.away`, file);
    }
  });

  it('is not sent after a newer generation: a sandbox deleted while it is unlocked stays deleted', async () => {
    const own = await world.stranger();
    await put('slow.example', { password }, own);
    await using runner = await world.runner();
    await using blocker = await world.database.pool.connect().then((client) => ({
      query: (sql: string) => client.query(sql),
      [Symbol.asyncDispose]: async () => {
        await client.query('rollback');
        client.release();
      },
    }));
    await blocker.query('begin');
    await blocker.query('lock table registry_credentials in access exclusive mode');
    const vm = await create(own, world, { image: 'slow.example/app' });
    await until(async () => {
      const { body } = await own('GET', `/vms/${vm.id}`);
      return body.status === 'assigned';
    });
    await own('DELETE', `/vms/${vm.id}`);
    await waitFor(own, vm.id, 'deleted');
    await blocker.query('rollback');
    const told = (): number[] =>
      runner.received.flatMap((message) =>
        message.type === 'desired'
          ? message.items.filter(({ id }) => id === vm.uuid).map(({ generation }) => generation)
          : [],
      );
    // The next create takes the same path, so any delayed message has arrived before it.
    const next = await create(own, world, { image: 'slow.example/app' });
    await runner.assigned(next.uuid);
    assert.deepEqual(
      told(),
      told().toSorted((a, b) => a - b),
    );
    assert.equal(runner.assignments.get(vm.uuid)?.desired, 'deleted');
  });

  it('no table contains it', async () => {
    const own = await world.stranger();
    await put('rows.example', { password: 'never-in-a-row' }, own);
    await using _runner = await world.runner({ script: silent });
    await create(own, world, { image: 'rows.example/app' });
    await own('POST', '/images', { name: 'x', source: 'rows.example/app' });
    for (const text of ['never-in-a-row', '"credential"'])
      assert.deepEqual(await tablesWith(world.database, text), []);
  });
});
