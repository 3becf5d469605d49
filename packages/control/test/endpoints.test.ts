/** Endpoints of sandboxes, and the decisions on previews that gateways get: a test for every row of the specification. */
import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import {
  BOUNDS,
  EndpointRecord,
  newToken,
  PreviewLink,
  tokenBytes,
  tokenKind,
  type GatewayGrant,
} from '@releap/contract';
import { GatewayClient, type GatewayAnswer } from '@releap/testing/gateway-client';
import { create, startWorld, until, waitFor } from '@releap/testing/world';
import { Compile } from 'typebox/compile';
import { purgePreviewLinks } from '../src/edge/endpoints/preview-links.ts';
import { mintApiKey, revokeApiKey } from '../src/index.ts';

type Vm = Awaited<ReturnType<typeof create>>;
const world = await startWorld();
await world.runner();
const gateway = await new GatewayClient(world.internalUrl).open();
const vm = await running();
after(() => gateway[Symbol.dispose]());

async function running(body: object = {}): Promise<Vm> {
  const made = await create(world.call, world, body);
  await waitFor(world.call, made.id, 'running');
  return made;
}

let port = 3000;
async function expose(on: Vm = vm, body: object = {}): Promise<EndpointRecord> {
  const answer = await world.call('POST', `/vms/${on.id}/endpoints`, { port: ++port, ...body });
  assert.equal(answer.status, 200, answer.text);
  assert.ok(Compile(EndpointRecord).Check(answer.body));
  return answer.body;
}

const link = async (on: Vm, body: object): Promise<PreviewLink> => {
  const answer = await world.call('POST', `/vms/${on.id}/preview-links`, body);
  assert.equal(answer.status, 200, answer.text);
  assert.ok(Compile(PreviewLink).Check(answer.body));
  return answer.body;
};

const resolve = (sandbox: string, on: number, token?: string): Promise<GatewayAnswer> =>
  gateway.ask({ kind: 'preview', sandbox, port: on }, token);
const shown = async (answer: Promise<GatewayAnswer>): Promise<string> => {
  const message = await answer;
  if (message.type === 'grant') return `granted, public ${message.public}`;
  return message.type === 'refusal' ? `${message.status} ${message.error}` : message.type;
};
/** By a token that expires soon: on a busy machine it has expired before it is used, and another one is needed. */
async function granted(ask: () => Promise<GatewayAnswer>): Promise<GatewayGrant> {
  let answer = await ask();
  await until(async () => answer.type === 'grant' || (answer = await ask()).type === 'grant');
  return answer as GatewayGrant;
}
const path = (endpoint: { id: string }): string => `/vms/${vm.id}/endpoints/${endpoint.id}`;

describe('POST /vms/:id/endpoints', () => {
  it('private by default, with a URL https://<port>-<sandbox-id>.<preview-domain>/', async () => {
    const endpoint = await expose();
    assert.equal(endpoint.public, false);
    assert.equal(endpoint.vm_id, vm.id);
    assert.equal(endpoint.url, `https://${endpoint.port}-${vm.id}.preview.test/`);
    assert.equal((await expose(vm, { public: true })).public, true);
  });

  it('duplicate gives 409; a retry under its Idempotency-Key gets the first answer', async () => {
    const endpoint = await expose();
    const again = await world.call('POST', `/vms/${vm.id}/endpoints`, { port: endpoint.port, public: true });
    assert.equal(again.status, 409);
    assert.match(again.text, new RegExp(`port ${endpoint.port} .*is already exposed`));
    const headers = { 'idempotency-key': 'endpoint-1' };
    const body = { port: ++port };
    const [first, second] = [
      await world.call('POST', `/vms/${vm.id}/endpoints`, body, { headers }),
      await world.call('POST', `/vms/${vm.id}/endpoints`, body, { headers }),
    ];
    assert.deepEqual([first.status, second.status], [200, 200]);
    assert.equal(first.body.id, second.body.id);
  });

  it('400 on a port that is none, and on more endpoints than allowed', async () => {
    for (const bad of [0, 65_536, -1, 1.5, '80', null, undefined]) {
      const answer = await world.call('POST', `/vms/${vm.id}/endpoints`, { port: bad });
      assert.equal(answer.status, 400, `${bad}: ${answer.text}`);
    }
    assert.equal(
      (await world.call('POST', `/vms/${vm.id}/endpoints`, { port: 80, public: 'yes' })).status,
      400,
    );
    const full = await running();
    for (let n = 1; n <= BOUNDS.endpointsPerSandbox; n++) await expose(full, { port: n });
    const answer = await world.call('POST', `/vms/${full.id}/endpoints`, { port: 9000 });
    assert.equal(answer.status, 400);
    assert.match(answer.text, /has 100 endpoints, which is the most allowed/);
  });

  it("404 on an unknown sandbox, a malformed id and another project's sandbox, for every call", async () => {
    const endpoint = await expose();
    const stranger = await world.stranger();
    for (const [call, id] of [
      [world.call, 'nothing'],
      [world.call, `here-${'b'.repeat(26)}`],
      [stranger, vm.id],
    ] as const) {
      for (const [method, tail, body] of [
        ['POST', 'endpoints', { port: 80 }],
        ['GET', 'endpoints', undefined],
        ['PATCH', `endpoints/${endpoint.id}`, { public: true }],
        ['DELETE', `endpoints/${endpoint.id}`, undefined],
        ['POST', 'preview-links', { port: 80 }],
      ] as const) {
        const answer = await call(method, `/vms/${id}/${tail}`, body);
        assert.equal(answer.status, 404, `${method} ${tail}: ${answer.text}`);
        assert.equal(answer.body.error, `sandbox ${JSON.stringify(id)} not found`);
      }
    }
  });
});

describe('the endpoints of a sandbox', () => {
  it('GET lists them; PATCH flips the visibility; DELETE removes one; unknown ones are 404', async () => {
    const own = await running();
    const [a, b] = [await expose(own), await expose(own)];
    const list = async () => (await world.call('GET', `/vms/${own.id}/endpoints`)).body;
    assert.deepEqual(await list(), { endpoints: [a, b] });
    const on = `/vms/${own.id}/endpoints`;
    const flipped = await world.call('PATCH', `${on}/${a.id}`, { public: true });
    const { updated_at } = flipped.body;
    assert.ok(Date.parse(updated_at) >= Date.parse(a.created_at));
    assert.deepEqual(flipped.body, { ...a, public: true, updated_at });
    assert.deepEqual((await world.call('DELETE', `${on}/${a.id}`)).body, { id: a.id, deleted: true });
    assert.deepEqual(await list(), { endpoints: [b] });
    for (const id of [a.id, 'x', vm.uuid]) {
      assert.equal((await world.call('PATCH', `${on}/${id}`, { public: true })).status, 404, id);
      assert.equal((await world.call('DELETE', `${on}/${id}`)).status, 404, id);
    }
    assert.equal((await world.call('PATCH', `${on}/${b.id}`, {})).status, 400);
    assert.equal((await world.call('PATCH', path(b), { public: true })).status, 404, 'of another sandbox');
  });

  it('remain while it is stopped, and are gone with it', async () => {
    const own = await running({ persistent: true });
    const endpoint = await expose(own, { public: true });
    await world.call('POST', `/vms/${own.id}/pause`);
    await waitFor(world.call, own.id, 'paused');
    assert.match(await shown(resolve(own.id, endpoint.port)), /^409 .* is paused, and must be running/);
    assert.equal((await world.call('GET', `/vms/${own.id}/endpoints`)).body.endpoints.length, 1);
    await world.call('DELETE', `/vms/${own.id}`);
    await waitFor(world.call, own.id, 'deleted');
    assert.equal((await world.call('GET', `/vms/${own.id}/endpoints`)).status, 404);
    assert.match(await shown(resolve(own.id, endpoint.port)), /^404 /);
  });
});

describe('POST /vms/:id/preview-links', () => {
  it('registers the port as private if not yet exposed, and returns the same URL and token on repeat calls', async () => {
    const first = await link(vm, { port: ++port });
    assert.equal(tokenKind(first.token), 'preview');
    assert.equal(first.signed_url, `${first.url}?rlp_token=${first.token}`);
    assert.equal(first.expires_at, null);
    assert.deepEqual(await link(vm, { port }), first);
    const { endpoints } = (await world.call('GET', `/vms/${vm.id}/endpoints`)).body;
    assert.equal(endpoints.find((one: EndpointRecord) => one.id === first.endpoint_id).public, false);
  });

  it('never changes the visibility of an exposed port', async () => {
    const endpoint = await expose(vm, { public: true });
    assert.equal((await link(vm, { port: endpoint.port })).endpoint_id, endpoint.id);
    const { endpoints } = (await world.call('GET', `/vms/${vm.id}/endpoints`)).body;
    assert.equal(endpoints.find((one: EndpointRecord) => one.id === endpoint.id).public, true);
  });

  it('400 on an expiry that is not valid', async () => {
    for (const expires_in_s of [0, -1, 1.5, 40 * 86_400, 'soon'])
      assert.equal(
        (await world.call('POST', `/vms/${vm.id}/preview-links`, { port: 80, expires_in_s })).status,
        400,
      );
  });
});

describe('signed preview URLs of the facade', () => {
  const signed = async (on: number, seconds = 60): Promise<string> => {
    const path = `/compat/sandbox/${vm.id}/ports/${on}/signed-preview-url?expiresInSeconds=${seconds}`;
    const answer = await world.call('GET', path);
    assert.equal(answer.status, 200, answer.text);
    return answer.body.token;
  };
  const expire = (token: string, on: number, call = world.call) =>
    call('POST', `/compat/sandbox/${vm.id}/ports/${on}/signed-preview-url/${token}/expire`);

  it('the token as the name of the host opens the port alone, with any credential or none', async () => {
    const token = await signed(++port);
    for (const credential of [undefined, newToken('apiKey'), newToken('preview')])
      assert.equal(await shown(resolve(token, port, credential)), 'granted, public false');
    const other = await expose();
    for (const [name, on] of [
      [token, other.port],
      ['a'.repeat(26), port],
    ] as const)
      assert.match(await shown(resolve(name, on, world.call.key)), /^401 .* is unknown or has expired/);
    // Neither a header nor a parameter takes it.
    assert.match(await shown(resolve(vm.id, port, token)), /^401 /);
  });

  it('expire ends it at once, and that link alone; its grants are revoked', async () => {
    const [token, staying] = [await signed(++port), await signed(port)];
    assert.notEqual(token, staying);
    const [ended, open] = [await resolve(token, port), await resolve(staying, port)];
    const stranger = await world.stranger();
    assert.equal((await expire(token, port, stranger)).status, 404);
    assert.equal((await expire(token, port + 1)).status, 404);
    assert.equal((await expire(token, port)).status, 200);
    await until(() => gateway.revokedAs(ended.id) === true);
    assert.match(await shown(resolve(token, port)), /^401 /);
    assert.equal(await shown(resolve(staying, port)), 'granted, public false');
    assert.equal(gateway.revokedAs(open.id), undefined);
    for (const unknown of [token, 'x']) {
      const again = await expire(unknown, port);
      assert.deepEqual([again.status, /not found/.test(again.text)], [404, true]);
    }
  });

  it('it is revoked when it expires, and with its endpoint, and expired ones are removed', async () => {
    port += 1;
    const first = await granted(async () => resolve(await signed(port, 1), port));
    await until(() => gateway.revokedAs(first.id) === true);
    const token = await signed(port);
    const second = await resolve(token, port);
    const rows = async (): Promise<number> => {
      const { rows: all } = await world.database.pool.query(
        'select 1 from preview_links l join endpoints e on e.id = l.endpoint_id where e.sandbox_id = $1 and e.port = $2',
        [vm.uuid, port],
      );
      return all.length;
    };
    await purgePreviewLinks(world.database, new AbortController().signal);
    assert.equal(await rows(), 1);
    const { endpoints } = (await world.call('GET', `/vms/${vm.id}/endpoints`)).body;
    await world.call('DELETE', path(endpoints.find((one: EndpointRecord) => one.port === port)));
    await until(() => gateway.revokedAs(second.id) === true);
    assert.match(await shown(resolve(token, port)), /^401 /);
    assert.equal(await rows(), 0);
  });
});

describe("a gateway's decision on a preview", () => {
  it('a private endpoint opens for its token, an API key of the project and the access token of the sandbox', async () => {
    const { token } = await link(vm, { port: ++port });
    for (const id of [vm.id, vm.uuid])
      for (const credential of [token, world.call.key, vm.token])
        assert.equal(await shown(resolve(id, port, credential)), 'granted, public false');
  });

  it('401 without a credential, and with one that is not valid for it', async () => {
    const endpoint = await expose();
    const stranger = await world.stranger();
    const other = await running();
    const { token } = await link(vm, { port: ++port });
    const bytes = tokenBytes(token) ?? Buffer.alloc(32);
    bytes.writeUInt8(bytes.readUInt8(31) ^ 1, 31);
    for (const credential of [
      undefined,
      'x',
      stranger.key,
      other.token,
      token,
      newToken('preview'),
      newToken('apiKey'),
    ])
      assert.match(await shown(resolve(vm.id, endpoint.port, credential)), /^401 this preview is private/);
    assert.match(await shown(resolve(vm.id, port, newToken('preview', bytes))), /^401 /);
  });

  it('a public endpoint opens for all callers', async () => {
    const endpoint = await expose(vm, { public: true });
    for (const credential of [undefined, world.call.key, newToken('apiKey')])
      assert.equal(await shown(resolve(vm.id, endpoint.port, credential)), 'granted, public true');
  });

  it('a port nobody exposed is unreachable: said to the project, and to others in the words of an unknown sandbox', async () => {
    const stranger = await world.stranger();
    assert.match(await shown(resolve(vm.id, 9, world.call.key)), /^404 port 9 .* is not exposed/);
    const unknown = `here-${'b'.repeat(26)}`;
    for (const credential of [undefined, stranger.key, newToken('preview')])
      for (const id of [vm.id, unknown, 'malformed'])
        assert.equal(
          await shown(resolve(id, 9, credential)),
          `404 there is no preview of port 9 of sandbox ${JSON.stringify(id)}`,
        );
  });

  it('is revoked when the endpoint becomes private, for callers without a credential', async () => {
    const endpoint = await expose(vm, { public: true });
    const [open, keyed] = [
      await resolve(vm.id, endpoint.port),
      await resolve(vm.id, endpoint.port, world.call.key),
    ];
    await world.call('PATCH', path(endpoint), { public: false });
    await until(() => gateway.revokedAs(open.id) === true);
    await until(() => gateway.revokedAs(keyed.id) === false);
    assert.match(await shown(resolve(vm.id, endpoint.port)), /^401 /);
  });

  it('is revoked when the endpoint is removed; its tokens do not open a later endpoint of the port', async () => {
    const removed = ++port;
    const { token, endpoint_id: id } = await link(vm, { port: removed });
    const [byToken, byKey] = [
      await resolve(vm.id, removed, token),
      await resolve(vm.id, removed, world.call.key),
    ];
    await world.call('DELETE', path({ id }));
    await until(() => gateway.revokedAs(byToken.id) === true && gateway.revokedAs(byKey.id) === true);
    assert.match(await shown(resolve(vm.id, removed, token)), /^404 /);
    await expose(vm, { port: removed });
    assert.match(await shown(resolve(vm.id, removed, token)), /^401 /);
  });

  it('is revoked with its API key, and when its token expires', async () => {
    const endpoint = await expose();
    const key = await mintApiKey(world.database.pool, world.call.projectId, 'preview');
    const byKey = await resolve(vm.id, endpoint.port, key.token);
    let token = '';
    const byToken = await granted(async () => {
      const before = Date.now();
      const made = await link(vm, { port: endpoint.port, expires_in_s: 6 });
      assert.ok(made.expires_at !== null && new Date(made.expires_at).getTime() > before);
      ({ token } = made);
      return resolve(vm.id, endpoint.port, token);
    });
    assert.ok(byToken.ttl_ms <= 7_000);
    await revokeApiKey(world.database.pool, key.id);
    await until(() => gateway.revokedAs(byKey.id) === true);
    await until(() => gateway.revokedAs(byToken.id) === true);
    assert.match(await shown(resolve(vm.id, endpoint.port, token)), /^401 /);
  });
});
