/** Lists that answer as a whole unless pages are asked for. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { testKeys } from '@releap/testing/keys';
import { startSignedInWorld, type Person, type SignedInWorld } from '@releap/testing/issuer';
import { create, host, until, type Caller } from '@releap/testing/world';
import { startScriptedGateway, type ScriptedGateway } from './support/scripted-gateway.ts';

type Ask = (path: string) => ReturnType<Caller>;

describe('lists in pages', () => {
  const keys = testKeys();
  let world: SignedInWorld;
  let ada: Person;
  let gateway: ScriptedGateway;
  before(async () => {
    gateway = await startScriptedGateway();
    world = await startSignedInWorld({
      keys,
      region: { id: 'here', toolboxProxyUrl: gateway.toolboxUrl, previewUrl: 'https://preview.test' },
    });
    ada = await world.as('ada');
  });
  after(async () => {
    await world[Symbol.asyncDispose]();
    await gateway[Symbol.asyncDispose]();
  });

  /**
   * Reads the list as a whole and in pages of each size: the same items in the same order.
   * @param varies a field that changes between two reads
   * @returns how many
   */
  async function pagesOf(ask: Ask, path: string, items: string, varies?: string): Promise<number> {
    const constant = (body: Record<string, unknown>): unknown[] =>
      (body[items] as object[]).map((item) => (varies === undefined ? item : { ...item, [varies]: '' }));
    const separator = path.includes('?') ? '&' : '?';
    const whole = await ask(path);
    assert.equal(whole.status, 200, `${path}: ${whole.text}`);
    assert.ok(!('next_cursor' in whole.body), path);
    const expected = constant(whole.body);
    for (const limit of [1, 2, 100]) {
      const found: unknown[] = [];
      let cursor: string | null = null;
      do {
        const after = cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`;
        const page = await ask(`${path}${separator}limit=${limit}${after}`);
        assert.equal(page.status, 200, `${path}: ${page.text}`);
        const rows = constant(page.body);
        assert.ok(rows.length <= limit, path);
        found.push(...rows);
        cursor = page.body.next_cursor as string | null;
      } while (cursor !== null);
      assert.deepEqual(found, expected, `${path} in pages of ${limit}`);
    }
    const refused = await ask(`${path}${separator}cursor=nonsense`);
    assert.deepEqual([refused.status, refused.body.code], [400, 'invalid_cursor'], path);
    return expected.length;
  }

  const all = async (call: Caller, requests: readonly [method: string, path: string, body: object][]) => {
    for (const [method, path, body] of requests) {
      const { status, text } = await call(method, path, body);
      assert.ok(status < 300, `${method} ${path}: ${text}`);
    }
  };

  it('of a project, on both of its planes', async () => {
    const { projectId, key } = await world.tenant(ada, 'pages');
    const names = ['b', 'a', 'c'];
    await all(
      key,
      names.flatMap((name): [string, string, object][] => [
        ['PUT', `/secrets/${name.toUpperCase()}`, { value: 'x' }],
        ['PUT', `/registries/${name}.example`, { kind: 'basic', username: 'u', password: 'p' }],
        ['POST', '/volumes', { name }],
        ['POST', '/object-stores', { name, bucket: 'data', access_key_secret: 'B', secret_key_secret: 'B' }],
      ]),
    );
    assert.equal((await key('DELETE', '/volumes/a')).status, 200);
    for (const [path, items, count] of [
      ['/secrets?include_object_store=true', 'secrets', 3],
      ['/registries', 'registries', 3],
      ['/volumes', 'volumes', 2],
      ['/volumes?include_deleted=true', 'volumes', 3],
      ['/object-stores', 'object_stores', 3],
    ] as const) {
      assert.equal(await pagesOf((at) => key('GET', at), path, items), count, path);
      assert.equal(
        await pagesOf((at) => ada('GET', at), `/projects/${projectId}${path}`, items),
        count,
        path,
      );
    }
  });

  it('of a function and of a sandbox', async () => {
    const { call } = world;
    await all(call, [
      ['POST', '/fns', { name: 'hello', image: 'busybox' }],
      ...['1', '2', '3'].map((day): [string, string, object] => [
        'POST',
        '/fns/hello/schedules',
        { cron: `0 0 ${day} 1 *` },
      ]),
      ...[1, 2, 3].map((n): [string, string, object] => ['POST', '/fns/hello/spawn', { n }]),
    ]);
    const get: Ask = (path) => call('GET', path);
    assert.equal(await pagesOf(get, '/fns/hello/schedules', 'schedules'), 3);
    // Those that have not ended change their status.
    await until(
      async () => (await get('/fns/hello/invocations?status=succeeded')).body.invocations.length === 3,
    );
    assert.equal(await pagesOf(get, '/fns/hello/invocations', 'invocations'), 3);
    const both = await get('/fns/hello/invocations?offset=1&cursor=x');
    assert.equal(both.status, 400, both.text);
    await world.runner();
    const { id } = await create(call, world);
    await all(
      call,
      [82, 80, 81].map((port) => ['POST', `/vms/${id}/endpoints`, { port }]),
    );
    assert.equal(await pagesOf(get, `/vms/${id}/endpoints`, 'endpoints'), 3);
  });

  it('of an organization and of its members', async () => {
    const get: Ask = (path) => ada('GET', path);
    const { orgId, projectId } = await world.tenant(ada, 'lists');
    const grace = await world.as('grace');
    await all(ada, [
      ['POST', `/orgs/${orgId}/projects`, { name: 'second' }],
      ['POST', `/projects/${projectId}/api-keys`, { name: 'one' }],
      ['POST', `/projects/${projectId}/api-keys`, { name: 'two' }],
      ...['grace', 'x', 'y'].map((name): [string, string, object] => [
        'POST',
        `/orgs/${orgId}/invitations`,
        { email: `${name}@example.com` },
      ]),
    ]);
    assert.ok((await pagesOf(get, '/orgs', 'organizations')) >= 2);
    assert.equal(await pagesOf(get, `/orgs/${orgId}/projects`, 'projects'), 2);
    assert.ok((await pagesOf(get, `/projects/${projectId}/api-keys`, 'api_keys')) >= 2);
    assert.equal(await pagesOf(get, `/orgs/${orgId}/invitations`, 'invitations'), 3);
    const invited = await grace('GET', '/invitations');
    await pagesOf((path) => grace('GET', path), '/invitations', 'invitations');
    for (const { id } of invited.body.invitations as { id: string }[])
      assert.equal((await grace('POST', `/invitations/${id}/accept`)).status, 200);
    assert.equal(
      await pagesOf(get, `/orgs/${orgId}/members`, 'members'),
      1 + invited.body.invitations.length,
    );
  });

  it('of the operator: hosts, join tokens, grants, the ledger and the audit log', async () => {
    const { operator } = world;
    const { orgId } = await world.tenant(ada, 'ledger');
    for (const amount of ['1', '2', '3'])
      assert.equal((await operator('POST', `/operator/orgs/${orgId}/grants`, { amount })).status, 200);
    const get: Ask = (path) => operator('GET', path);
    assert.equal(await pagesOf(get, `/operator/orgs/${orgId}/grants`, 'grants'), 3);
    assert.equal(await pagesOf((path) => ada('GET', path), `/orgs/${orgId}/credits`, 'ledger'), 3);
    const { id } = await world.runner();
    await until(async () => (await host(world, id))?.ready === true);
    assert.ok((await pagesOf(get, '/operator/hosts', 'hosts', 'last_seen_at')) >= 1);
    await all(
      operator,
      ['a', 'b', 'c'].map((name) => ['POST', '/operator/join-tokens', { name }]),
    );
    assert.equal(await pagesOf(get, '/operator/join-tokens', 'join_tokens'), 3);
    // Its reads are entries too.
    const [newest] = (await get('/operator/audit')).body.entries as { created_at: string }[];
    const audit = `/operator/audit?before=${encodeURIComponent(newest?.created_at ?? '')}`;
    assert.ok((await pagesOf(get, audit, 'entries')) >= 3);
  });
});
