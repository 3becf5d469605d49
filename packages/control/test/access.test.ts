import { randomUUID } from 'node:crypto';
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { GATEWAY_LINK_PATH, newToken, RUNNER_LINK_PATH } from '@releap/contract';
import { WebSocket } from 'ws';
import type { Database } from '@releap/database';
import type { QueryConfig, QueryResult } from 'pg';
import { createAuthenticator } from '../src/platform/auth/authenticator.ts';
import { ensureBootstrap, mintApiKey, revokeApiKey } from '../src/index.ts';
import { inspectApiKeys, tablesWith } from '@releap/testing/inspect';
import { caller, startWorld, until, refusalOf } from '@releap/testing/world';
import { credentialOf, GATEWAY_TOKEN, JOIN_TOKEN, OPERATOR_TOKEN } from '@releap/testing/credentials';

const world = await startWorld();
await world.runner();

const WORKLOAD = [
  ['POST', '/vms'],
  ['GET', '/vms'],
  ['GET', '/vms/x'],
  ['DELETE', '/vms/x'],
  ['GET', '/vms/x/logs'],
  ['GET', '/vms/x/entrypoint-logs'],
  ['POST', '/images'],
  ['GET', '/images'],
  ['GET', '/jobs/x'],
  ['GET', '/regions'],
  ['GET', '/global-regions'],
  ['GET', '/cpu-types'],
  ['GET', '/network-classes'],
  ['GET', '/disk-classes'],
] as const;

describe('credentials', () => {
  for (const [method, path] of WORKLOAD) {
    it(`${method} ${path} 401: missing or invalid credentials`, async () => {
      const body = method === 'POST' ? '{"not":"even looked at' : undefined;
      for (const header of [
        '',
        'Bearer',
        'Bearer ',
        'Bearer nonsense',
        `Bearer ${newToken('apiKey')}`,
        `Bearer ${newToken('sandbox')}`,
        `Basic ${world.call.key}`,
        world.call.key,
      ]) {
        const answer = await caller(() => world.url, '', '')(
          method,
          path,
          body,
          header === '' ? {} : { headers: { authorization: header } },
        );
        assert.equal(answer.status, 401, `${header}: ${answer.text}`);
        assert.deepEqual(Object.keys(answer.body), ['error', 'code', 'retryable', 'request_id']);
        assert.equal(answer.body.code, 'unauthorized');
        assert.equal(answer.headers.get('www-authenticate'), 'Bearer');
      }
    });
  }

  it('a revoked key stops working within a second; other keys continue to work', async () => {
    const { token, id } = await mintApiKey(world.database.pool, world.call.projectId, 'short-lived');
    const other = caller(() => world.url, token, world.call.projectId);
    assert.equal((await other('GET', '/vms')).status, 200);
    await revokeApiKey(world.database.pool, id);
    await sleep(1_000);
    assert.equal((await other('GET', '/vms')).status, 401);
    assert.equal((await world.call('GET', '/vms')).status, 200);
  });

  it('minting another default key revokes the one before', async () => {
    const project = await world.stranger();
    const next = await mintApiKey(world.database.pool, project.projectId);
    await sleep(1_000);
    assert.equal((await project('GET', '/vms')).status, 401);
    assert.equal((await caller(() => world.url, next.token, project.projectId)('GET', '/vms')).status, 200);
  });

  it('stores only the hash of a key, and writes its last use in batches', async () => {
    await world.call('GET', '/vms');
    const [row] = await inspectApiKeys(world.database, { project_id: world.call.projectId });
    assert.match(row?.key_prefix ?? '', /^rlp_.{8}$/);
    assert.deepEqual(await tablesWith(world.database, world.call.key), []);
    await using other = await startWorld();
    await other.call('GET', '/vms');
    await other.restart();
    const [used] = await inspectApiKeys(other.database);
    assert.ok(used?.last_used_at instanceof Date);
  });

  it('loses no last use to a database that is away when it is to be written', async () => {
    const { key, projectId } = await world.stranger();
    let away = true;
    const query = async (asked: QueryConfig): Promise<QueryResult> => {
      if (away && asked.text.startsWith('update')) throw new Error('Connection terminated');
      return world.database.pool.query(asked);
    };
    const pool = { query } as unknown as Database['pool'];
    const authenticator = createAuthenticator({ ...world.database, pool });
    assert.equal((await authenticator.byApiKey(key))?.projectId, projectId);
    await assert.rejects(authenticator.flush());
    away = false;
    await authenticator.flush();
    const [used] = await inspectApiKeys(world.database, { project_id: projectId });
    assert.ok(used?.last_used_at instanceof Date);
  });
});

describe('the bootstrap', () => {
  it('makes organization, project and key once, and keeps a key that still works', async () => {
    const again = await ensureBootstrap(world.database, {
      existingApiKey: world.call.key,
      keyName: 'default',
    });
    assert.deepEqual(
      [again.apiKey, again.created, again.projectId],
      [world.call.key, false, world.call.projectId],
    );
  });

  it('creates a new key for a caller without its own, once for concurrent calls of one name', async () => {
    await using other = await startWorld();
    const made = await Promise.all(
      Array.from({ length: 4 }, () => ensureBootstrap(other.database, { keyName: 'default' })),
    );
    assert.equal(new Set(made.map((one) => one.projectId)).size, 1);
    const live = (await inspectApiKeys(other.database)).filter((key) => key.revoked_at === null);
    assert.equal(live.length, 1);
  });

  it('of one server leaves the keys of other servers on the same database alone', async () => {
    await using other = await startWorld();
    const [one, two] = ['bootstrap a:/one', 'bootstrap a:/two'] as const;
    const first = await ensureBootstrap(other.database, { keyName: one });
    const second = await ensureBootstrap(other.database, { keyName: two });
    assert.equal(first.projectId, second.projectId);
    const replaced = await ensureBootstrap(other.database, { keyName: two });
    const working = async (key: string): Promise<boolean> =>
      (await ensureBootstrap(other.database, { existingApiKey: key, keyName: 'asks' })).apiKey === key;
    assert.deepEqual(
      [await working(other.call.key), await working(first.apiKey), await working(replaced.apiKey)],
      [true, true, true],
    );
    assert.equal(await working(second.apiKey), false);
  });

  it('does not use an organization of the same name that a user has created', async () => {
    await using other = await startWorld();
    const { pool } = other.database;
    const id = crypto.randomUUID();
    await pool.query(
      `insert into organizations (id, name, created_at) values ($1, 'default', now() - interval '1 year')`,
      [id],
    );
    await pool.query(`insert into projects (id, org_id, name) values ($1, $1, 'default')`, [id]);
    assert.notEqual((await ensureBootstrap(other.database, { keyName: 'default' })).orgId, id);
  });
});

describe('the public listener', () => {
  it('has no internal and no operator routes: 404 with any credential', async () => {
    const id = '00000000-0000-4000-8000-000000000000';
    for (const key of [OPERATOR_TOKEN, GATEWAY_TOKEN, JOIN_TOKEN, world.call.key, '']) {
      const call = caller(() => world.url, key, '');
      for (const [method, path] of [
        ['GET', GATEWAY_LINK_PATH],
        ['GET', RUNNER_LINK_PATH],
        ['GET', '/operator/hosts'],
        ['POST', `/operator/hosts/${id}/drain`],
        ['GET', `/operator/orgs/${id}/grants`],
        ['GET', '/metrics'],
      ] as const) {
        const answer = await call(method, path, method === 'POST' ? {} : undefined);
        const error = `no such route: ${method} ${path}`;
        const refusal = { error, code: 'route_not_found', retryable: false };
        assert.deepEqual([answer.status, refusalOf(answer)], [404, refusal]);
      }
    }
    const socket = new WebSocket(world.url.replace('http', 'ws') + RUNNER_LINK_PATH, {
      headers: { authorization: `Bearer ${credentialOf(randomUUID())}` },
    });
    const status = await new Promise((resolve) => {
      socket.on('unexpected-response', (_request, response) => resolve(response.statusCode));
      socket.on('open', () => resolve('opened'));
      socket.on('error', () => undefined);
    });
    assert.equal(status, 404);
  });
});

describe('the HTTP server', () => {
  it('answers an unknown route with 404 and an error', async () => {
    for (const path of ['/', '/nope', '/vms/x/y/z', '/vms/x/nap', `/${'a'.repeat(5000)}`]) {
      const answer = await world.call('POST', path);
      assert.equal(answer.status, 404, answer.text);
      assert.match(answer.body.error, /^no such route: POST /);
    }
  });

  it('answers malformed HTTP and malformed paths with 400 and an error', async () => {
    assert.equal((await world.call('GET', '/vms/%ff')).status, 400);
    const socket = connect(world.control.port, '127.0.0.1');
    socket.end('NOT HTTP AT ALL\r\n\r\n');
    let text = '';
    for await (const chunk of socket) text += String(chunk);
    assert.match(text, /^HTTP\/1\.1 400 [^]*\{"error":"the request is not valid HTTP",[^}]*\}$/);
    const [, requestId = ''] = /^x-request-id: (.+)\r$/m.exec(text) ?? [];
    assert.ok(text.includes(`"request_id":"${requestId}"`) && requestId !== '', text);
  });

  it('takes a body without a content type for JSON, and refuses broken UTF-8', async () => {
    const plain = await world.call('POST', '/vms', undefined, { body: '{"image":"busybox"}' });
    assert.equal(plain.status, 200, plain.text);
    const broken = await world.call('POST', '/vms', undefined, { body: new Uint8Array([0x7b, 0xff, 0x7d]) });
    const utf8 = { error: 'the request body must be UTF-8', code: 'invalid_request', retryable: false };
    assert.deepEqual([broken.status, refusalOf(broken)], [400, utf8]);
  });

  it('is not affected by __proto__, constructor and NUL characters', async () => {
    const answer = await world.call(
      'POST',
      '/vms',
      '{"image":"busybox","__proto__":{"cpu":-1},"constructor":{"prototype":{}},"env":{"__proto__":"x"}}',
    );
    assert.equal(answer.status, 200, answer.text);
    const nul = await world.call('POST', '/vms', { image: 'busybox', name: 'a\0b' });
    assert.equal(nul.status, 400);
  });

  it('accepts a DELETE with an empty body of type JSON', async () => {
    const answer = await world.call('DELETE', '/vms/x', undefined, {
      headers: { 'content-type': 'application/json' },
    });
    assert.equal(answer.status, 404);
  });

  it('gives every answer a request id, the caller’s own if it is harmless', async () => {
    assert.ok((await world.call('GET', '/regions')).headers.get('x-request-id'));
    assert.equal(
      (await world.call('GET', '/regions', undefined, { headers: { 'x-request-id': 'abc-1' } })).headers.get(
        'x-request-id',
      ),
      'abc-1',
    );
    assert.notEqual(
      (await world.call('GET', '/regions', undefined, { headers: { 'x-request-id': '<b>' } })).headers.get(
        'x-request-id',
      ),
      '<b>',
    );
  });

  it('GET /openapi.json names the toolboxes of this service, that of the default region first', async () => {
    const toolbox = async () => {
      const { body } = await caller(() => world.url, '', '')('GET', '/openapi.json');
      const servers = Object.values(body.paths as Record<string, { servers?: { variables: object }[] }>);
      return servers.find(({ servers: own }) => own !== undefined)?.servers?.[0]?.variables;
    };
    await world.database.pool.query(`insert into regions (id, name, toolbox_proxy_url) values
      ('a-second', 'Second', 'https://second.example/toolbox')`);
    const urls = ['http://127.0.0.1:1/', 'https://second.example/toolbox'];
    const expected = { toolbox_proxy_url: { default: urls[0], enum: urls }, vm_id: { default: 'id' } };
    try {
      await until(async () => isDeepStrictEqual(await toolbox(), expected));
    } finally {
      await world.database.pool.query(`delete from regions where id = 'a-second'`);
    }
    await until(async () => (await toolbox()) !== undefined && !isDeepStrictEqual(await toolbox(), expected));
  });

  it('GET /openapi.json is the OpenAPI 3.1 document, and names every route', async () => {
    const { body, status } = await caller(() => world.url, '', '')('GET', '/openapi.json');
    assert.equal(status, 200);
    assert.match(body.openapi, /^3\.1/);
    for (const [method, path] of WORKLOAD)
      assert.ok(body.paths[path.replace('/x', '/{id}')]?.[method.toLowerCase()], `${method} ${path}`);
  });
});

describe('regions', () => {
  it('GET /regions lists the active ones as an array', async () => {
    await world.database.pool.query(`insert into global_regions (id, name) values ('g', 'G')`);
    await world.database.pool.query(
      `insert into regions (id, name, enabled, global_region_id) values ('off', 'Off', false, 'g'), ('on', 'On', true, 'g')`,
    );
    await until(async () => (await world.call('GET', '/regions')).body.length === 2);
    assert.deepEqual((await world.call('GET', '/regions')).body, [
      {
        id: 'here',
        name: 'Here',
        status: 'active',
        is_default: true,
        toolbox_proxy_url: 'http://127.0.0.1:1/',
      },
      { id: 'on', name: 'On', status: 'active', is_default: false, global_region_id: 'g' },
    ]);
    assert.deepEqual((await world.call('GET', '/global-regions')).body, [
      { id: 'g', name: 'G', member_count: 1 },
    ]);
  });

  it('GET /cpu-types, /network-classes and /disk-classes are empty while the operator has defined no class', async () => {
    for (const path of ['/cpu-types', '/network-classes', '/disk-classes'])
      assert.deepEqual((await world.call('GET', path)).body, []);
  });

  it('a project’s default region comes before the platform’s', async () => {
    const project = await world.stranger();
    await world.database.pool.query(`update projects set default_region = 'on' where id = $1`, [
      project.projectId,
    ]);
    const { body } = await project('POST', '/vms', { image: 'busybox' });
    assert.match(body.vm_id, /^on-/);
  });
});
