/** The compatibility facade's sandboxes, as its wire protocol writes them. The SDK itself is tested against real sandboxes. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import {
  CompatSandbox,
  CompatSandboxItem,
  COMPAT_PREFIX,
  isLinkToken,
  newUuid,
  parseSandboxId,
  UNSUPPORTED_OPERATIONS,
} from '@releap/contract';
import { sdk, type Untyped } from '@releap/testing/daytona';
import { GatewayClient } from '@releap/testing/gateway-client';
import { inspect } from '@releap/testing/inspect';
import {
  create as createNative,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Caller,
  type World,
} from '@releap/testing/world';
import { Compile } from 'typebox/compile';

let world: World;
let call: Caller;
before(async () => {
  world = await startWorld({
    compatSnapshot: 'busybox',
    publicUrl: 'https://api.test',
    limits: { leaseGraceMs: 0 },
  });
  // Dedicated sandboxes have cores of their own.
  await world.runner({ facts: { cores: 256, mem_mib: 1_000_000, disk_mib: 10_000_000 } });
  call = facade(await world.stranger());
});
after(async () => world[Symbol.asyncDispose]());

/** Calls of the facade with this caller's key. */
function facade(of: Caller): Caller {
  const to = (method: string, path: string, body?: unknown, init?: RequestInit): Promise<Answer> =>
    of(method, `${COMPAT_PREFIX}${path}`, body, init);
  return Object.assign(to, { key: of.key, projectId: of.projectId });
}

const isSandbox = Compile(CompatSandbox);
const isItem = Compile(CompatSandboxItem);

async function create(body: object = {}, by = call): Promise<CompatSandbox> {
  const { status, body: sandbox, text } = await by('POST', '/sandbox', body);
  assert.equal(status, 200, text);
  assert.ok(isSandbox.Check(sandbox), JSON.stringify([...isSandbox.Errors(sandbox)]));
  return sandbox;
}

/** The refusal, which must have the form that the SDK reads. */
async function refused(answer: Promise<Answer>, status: number): Promise<string> {
  const { status: sent, body, text } = await answer;
  assert.equal(sent, status, text);
  assert.deepEqual([body.statusCode, body.error, typeof body.code], [status, body.message, 'string'], text);
  return body.message;
}

async function ids(query: string, by = call): Promise<string[]> {
  const { status, body, text } = await by('GET', `/sandbox?${query}`);
  assert.equal(status, 200, text);
  for (const item of body.items) assert.ok(isItem.Check(item));
  return body.items.map(({ id }: { id: string }) => id);
}

describe('POST /sandbox', () => {
  it('starts a dedicated sandbox that is not persistent, at the full price, of the requested size', async () => {
    const made = await create({
      name: 'first',
      snapshot: 'busybox',
      env: { A: '1' },
      labels: { team: 'x' },
      target: 'local',
      cpu: 2,
      memory: 2,
      disk: 4,
      user: '',
      unknown: { field: 1 },
      autoStopInterval: 0,
      public: true,
    });
    assert.deepEqual(
      [made.state, made.name, made.cpu, made.memory, made.disk, made.snapshot, made.target, made.public],
      ['started', 'first', 2, 2, 4, 'busybox', 'here', false],
    );
    assert.deepEqual(
      [made.env, made.labels, made.toolboxProxyUrl],
      [{ A: '1' }, { team: 'x' }, 'http://127.0.0.1:1'],
    );
    const { body: native } = await worldCall('GET', `/vms/${made.id}`);
    assert.deepEqual(
      [native.mode, native.persistent, native.spot, native.scratch_mib],
      ['dedicated', false, false, 4096],
    );
    for (const key of [made.id, 'first']) assert.deepEqual((await call('GET', `/sandbox/${key}`)).body, made);
    const { body: item } = await call('GET', '/sandbox?name=FIR');
    assert.deepEqual(
      [item.items.length, item.items[0].labels, 'env' in item.items[0]],
      [1, { team: 'x' }, false],
    );
  });

  it('resolves a snapshot, an image, a reference, a Dockerfile of one FROM, and the default of the deployment', async () => {
    const refOf = async (body: object): Promise<unknown> => {
      const { id, snapshot } = await create({ ...body, memory: 1 });
      const row = await inspect(world.database, { uuid: uuidOf(id) });
      return [row.spec.root.type, snapshot];
    };
    assert.deepEqual(await refOf({}), ['builtin', 'busybox']);
    assert.deepEqual(await refOf({ snapshot: 'registry.test/app:1' }), ['registry', 'registry.test/app:1']);
    // Neither a snapshot nor an image: a reference.
    assert.deepEqual(await refOf({ snapshot: 'ubuntu' }), ['registry', 'ubuntu']);
    const from = (text: string): object => ({ buildInfo: { contextHashes: [], dockerfileContent: text } });
    assert.deepEqual(await refOf(from('FROM registry.test/app:1\n')), ['registry', 'registry.test/app:1']);
    assert.deepEqual(await refOf(from('FROM busybox\n')), ['builtin', 'busybox']);
    assert.deepEqual(await refOf(from('FROM alpine\n')), ['registry', 'alpine']);
    const built = await create(from('FROM busybox\nRUN true\n'));
    assert.equal(built.buildInfo?.dockerfileContent, 'FROM busybox\nRUN true\n');
    assert.equal(built.snapshot, undefined);
  });

  it('runs as the given user, else as that of the image', async () => {
    const userOf = async (body: object): Promise<unknown> => {
      const { id, user } = await create(body);
      return [user, (await inspect(world.database, { uuid: uuidOf(id) })).spec.user];
    };
    assert.deepEqual(await userOf({ user: 'nobody' }), ['nobody', 'nobody']);
    assert.deepEqual(await userOf({ user: '' }), ['root', undefined]);
  });

  it('applies network settings', async () => {
    const policy = async (body: object) => {
      const { networkBlockAll, networkAllowList, domainAllowList } = await create(body);
      return [networkBlockAll, networkAllowList, domainAllowList];
    };
    assert.deepEqual(await policy({}), [false, undefined, undefined]);
    assert.deepEqual(await policy({ networkBlockAll: true }), [true, undefined, undefined]);
    const lists = { networkAllowList: '10.0.0.0/8, 1.2.3.4', domainAllowList: '*.example.org' };
    assert.deepEqual(await policy(lists), [false, '10.0.0.0/8,1.2.3.4', '*.example.org']);
  });

  it('refuses what it cannot do, in the form of the protocol, and leaves nothing behind', async () => {
    const before = await ids('');
    const rows: [object | string, number, RegExp][] = [
      [{ snapshot: 'busybox', buildInfo: { dockerfileContent: 'FROM a' } }, 400, /exclude each other/],
      [
        { buildInfo: { dockerfileContent: 'FROM a', contextHashes: ['x'] } },
        400,
        /contextHashes must be empty/,
      ],
      [{ buildInfo: { dockerfileContent: '' } }, 400, /dockerfileContent/],
      [{ snapshot: 'Not-A-Reference' }, 404, /"Not-A-Reference" not found/],
      [{ target: 'mars' }, 400, /region "mars" is unknown/],
      [{ labels: { big: 'x'.repeat(1_000_000) } }, 400, /labels have 1000010 bytes/],
      [{ labels: { team: 1 } }, 400, /labels\.team/],
      [{ env: { '1a': 'x' } }, 400, /env name "1a"/],
      [{ env: { A: 'x'.repeat(70_000) } }, 400, /env\.A has 70000 bytes/],
      [{ cpu: 1.5 }, 400, /cpu/],
      [{ cpu: 17 }, 400, /16/],
      [{ name: 'x'.repeat(300) }, 400, /name/],
      [{ volumes: [{ volumeId: 'v', mountPath: '/v' }] }, 501, /volumes/],
      [{ gpuType: ['H100'] }, 501, /gpuType/],
      [{ linkedSandbox: 'x' }, 501, /linkedSandbox/],
      [{ autoPauseInterval: 5 }, 501, /autoPauseInterval/],
      [{ kvm: true }, 501, /kvm/],
      [{ secrets: [{ A: 'b' }] }, 501, /secrets/],
      [{ outboundProxyUrl: 'http://proxy.test' }, 501, /outboundProxyUrl/],
      [{ autoStopInterval: -1 }, 400, /autoStopInterval/],
      [{ ttlMinutes: 1.5 }, 400, /ttlMinutes/],
      [{ user: 'a b' }, 400, /^user "a b" must be the name or the number of a user of the image/],
      [{ networkAllowList: '10.0.0.0/8,a b' }, 400, /^networkAllowList\[1\] must be .* "a b"/],
      [{ domainAllowList: '*' }, 400, /^domainAllowList\[0\] .* leave domainAllowList out/],
      [{ networkAllowList: '1.1.1.1,'.repeat(300) }, 400, /have 300 entries; at most 256/],
      [{ name: 'a\u0007' }, 400, /control characters/],
      [{ labels: { big: 'x'.repeat(9_000_000) } }, 400, /body is too large/],
      [{ labels: ['x'] }, 400, /labels/],
      [{ memory: -1 }, 400, /memory/],
      [{ disk: 1e7 }, 400, /disk/],
      ['{', 400, /JSON/],
      ['[]', 400, /object/],
    ];
    for (const [body, status, message] of rows)
      assert.match(await refused(call('POST', '/sandbox', body), status), message);
    await create({ name: 'taken' });
    assert.match(await refused(call('POST', '/sandbox', { name: 'taken' }), 409), /"taken" already exists/);
    assert.equal((await ids('')).length, before.length + 1);
    const { rows: reserved } = await world.database.pool.query(
      'select 1 from compat_sandboxes where sandbox_id not in (select id from sandboxes)',
    );
    assert.equal(reserved.length, 0);
  });

  it('gives a name to one of many concurrent creates', async () => {
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => call('POST', '/sandbox', { name: 'one' })),
    );
    const statuses = answers.map(({ status }) => status);
    assert.deepEqual(
      statuses.toSorted((a, b) => a - b),
      [200, ...Array<number>(7).fill(409)],
    );
  });
});

describe('the life of a sandbox', () => {
  it('stops for good, is shown as stopped until it is deleted, and frees its name then', async () => {
    const { id } = await create({ name: 'short', labels: { a: 'b' } });
    // What the SDK sends: no body, and the content type of a form.
    const form = { headers: { 'content-type': 'application/x-www-form-urlencoded' } };
    const { status, body: stopped } = await call('POST', `/sandbox/${id}/stop?force=false`, undefined, form);
    assert.deepEqual([status, stopped.state, stopped.desiredState], [200, 'stopped', 'stopped']);
    assert.deepEqual((await call('GET', '/sandbox/short')).body.labels, { a: 'b' });
    assert.deepEqual(await ids('states=stopped&name=short'), [id]);
    assert.equal((await call('POST', `/sandbox/${id}/stop`)).body.state, 'stopped');
    assert.match(
      await refused(call('POST', `/sandbox/${id}/start`, undefined, form), 501),
      /start of a stopped sandbox/,
    );
    assert.equal((await call('GET', `/sandbox/${id}`)).body.state, 'stopped');
    assert.match(await refused(call('POST', '/sandbox', { name: 'short' }), 409), /"short"/);
    assert.equal((await call('DELETE', '/sandbox/short')).status, 200);
    assert.match(await refused(call('GET', `/sandbox/${id}`), 404), /not found/);
    assert.match(await refused(call('DELETE', `/sandbox/${id}`), 404), /not found/);
    await create({ name: 'short' });
  });

  it('starts one that runs, records activity, and says where the toolbox is', async () => {
    const { id, lastActivityAt } = await create();
    assert.equal((await call('POST', `/sandbox/${id}/start`)).body.state, 'started');
    const touched = await call('POST', `/sandbox/${id}/last-activity`);
    assert.deepEqual([touched.status, touched.body.lastActivityAt > lastActivityAt], [201, true]);
    assert.deepEqual((await call('GET', `/sandbox/${id}/toolbox-proxy-url`)).body, {
      url: 'http://127.0.0.1:1',
    });
    assert.equal((await call('DELETE', `/sandbox/${id}`)).body.state, 'destroyed');
    await until(async () => (await call('GET', `/sandbox/${id}`)).status === 404);
  });

  it("shows sandboxes of the API, and stops and starts persistent ones; another project's are unknown", async () => {
    const { id } = await createNative(world.call, world, { persistent: true, name: 'native' });
    await waitFor(world.call, id, 'running');
    const mine = facade(world.call);
    const { body } = await mine('GET', '/sandbox/native');
    assert.deepEqual([body.id, body.labels, body.cpu], [id, {}, 1]);
    assert.equal((await mine('POST', '/sandbox/native/stop')).body.state, 'stopped');
    assert.equal((await mine('POST', '/sandbox/native/start')).body.state, 'started');
    await world.call('POST', `/vms/${id}/pause`);
    await until(async () => (await mine('GET', '/sandbox/native')).body.state === 'paused');
    assert.equal((await mine('POST', '/sandbox/native/start')).body.state, 'started');
    for (const [method, path] of [
      ['GET', ''],
      ['DELETE', ''],
      ['POST', '/stop'],
      ['POST', '/start'],
    ] as const)
      assert.match(await refused(call(method, `/sandbox/${id}${path}`), 404), /not found/);
  });

  it('gives preview URLs of a private endpoint, and signed ones', async () => {
    const { id } = await create();
    const { body: plain } = await call('GET', `/sandbox/${id}/ports/3000/preview-url`);
    // Without a slash: clients write `url + '/path'`.
    assert.deepEqual([plain.sandboxId, plain.url], [id, `https://3000-${id}.preview.test`]);
    const { body: signed } = await call(
      'GET',
      `/sandbox/${id}/ports/3000/signed-preview-url?expiresInSeconds=60`,
    );
    assert.deepEqual(
      [signed.sandboxId, signed.port, signed.url],
      [id, 3000, `https://3000-${signed.token}.preview.test`],
    );
    assert.ok(isLinkToken(signed.token), signed.token);
    const { body: endpoints } = await worldCall('GET', `/vms/${id}/endpoints`);
    assert.deepEqual(
      endpoints.endpoints.map(({ port, public: open }: { port: number; public: boolean }) => [port, open]),
      [[3000, false]],
    );
    for (const port of ['0', '65536', 'x'])
      assert.match(await refused(call('GET', `/sandbox/${id}/ports/${port}/preview-url`), 400), /port/);
    await call('POST', `/sandbox/${id}/stop`);
    assert.match(await refused(call('GET', `/sandbox/${id}/ports/3000/preview-url`), 409), /is stopped/);
  });
});

describe('intervals of a create', () => {
  /** As if this many minutes had passed since its start, its last activity, or its stop. */
  async function later(id: string, minutes: number): Promise<void> {
    const set = (table: string, key: string, column: string): Promise<unknown> =>
      world.database.pool.query(
        `update ${table} set ${column} = ${column} - $2 * interval '1 minute' where ${key} = $1`,
        [uuidOf(id), minutes],
      );
    // In this order: the lease ends it.
    await set('sandboxes', 'id', 'updated_at');
    await set('sandbox_leases', 'sandbox_id', 'ends_at');
    await set('sandbox_leases', 'sandbox_id', 'expires_at');
  }
  const stateOf = async (id: string): Promise<unknown> => {
    const { status, body } = await call('GET', `/sandbox/${id}`);
    return status === 404 ? 404 : body.state;
  };
  const intervals = ({ autoStopInterval, autoArchiveInterval, autoDeleteInterval }: CompatSandbox) => [
    autoStopInterval,
    autoArchiveInterval,
    autoDeleteInterval,
  ];

  it('are returned; absent ones and 0 end nothing', async () => {
    const plain = await create();
    assert.deepEqual(intervals(plain), [0, 0, -1]);
    const never = await create({
      autoStopInterval: 0,
      autoArchiveInterval: 60,
      autoDeleteInterval: -1,
      ttlMinutes: 0,
    });
    assert.deepEqual(intervals(never), [0, 60, -1]);
    const { rows } = await world.database.pool.query(
      'select 1 from sandbox_leases where sandbox_id = any($1)',
      [[uuidOf(plain.id), uuidOf(never.id)]],
    );
    assert.equal(rows.length, 0);
  });

  it('autoStopInterval stops one without activity, which is then shown as stopped; activity renews it', async () => {
    const [idle, busy, used] = [
      await create({ autoStopInterval: 5 }),
      await create({ autoStopInterval: 5 }),
      await create({ autoStopInterval: 5 }),
    ];
    assert.deepEqual(intervals(idle), [5, 0, -1]);
    using gateway = await new GatewayClient(world.internalUrl).open();
    for (const { id } of [idle, busy, used]) await later(id, 4);
    assert.equal((await call('POST', `/sandbox/${busy.id}/last-activity`)).status, 201);
    // What gateways report: this grant was used.
    const grant = await gateway.ask({ kind: 'toolbox', sandbox: used.id }, call.key);
    assert.equal(grant.type, 'grant');
    gateway.send({ type: 'active', ids: [grant.id] });
    await until(
      async () => (await call('GET', `/sandbox/${used.id}`)).body.lastActivityAt > used.lastActivityAt,
    );
    for (const { id } of [idle, busy, used]) await later(id, 2);
    await until(async () => (await stateOf(idle.id)) === 'stopped');
    assert.deepEqual([await stateOf(busy.id), await stateOf(used.id)], ['started', 'started']);
    // It is shown until it is deleted, and has no lease any more: that ends after the stop.
    const lease = 'select 1 from sandbox_leases where sandbox_id = $1';
    await until(async () => (await world.database.pool.query(lease, [uuidOf(idle.id)])).rowCount === 0);
    assert.equal((await call('DELETE', `/sandbox/${idle.id}`)).status, 200);
    assert.equal(await stateOf(idle.id), 404);
  });

  it('the idle time of one begins when it runs', async () => {
    const { id } = await create({ autoStopInterval: 1 });
    await world.database.pool.query(
      `update sandbox_leases set expires_at = now() - interval '1 hour' where sandbox_id = $1`,
      [uuidOf(id)],
    );
    await world.control.sweep();
    assert.equal(await stateOf(id), 'started');
  });

  it('autoDeleteInterval 0 (ephemeral) deletes at the stop, by the client or for want of activity', async () => {
    const [stopped, idle] = [
      await create({ autoDeleteInterval: 0 }),
      await create({ autoDeleteInterval: 0, autoStopInterval: 5 }),
    ];
    assert.equal((await call('POST', `/sandbox/${stopped.id}/stop`)).body.state, 'destroyed');
    await until(async () => (await stateOf(stopped.id)) === 404);
    await later(idle.id, 6);
    await until(async () => (await stateOf(idle.id)) === 404);
  });

  it('autoDeleteInterval deletes a stopped one after this time, however it was stopped', async () => {
    const [stopped, idle] = [
      await create({ autoDeleteInterval: 10 }),
      await create({ autoDeleteInterval: 10, autoStopInterval: 5 }),
    ];
    await call('POST', `/sandbox/${stopped.id}/stop`);
    await later(idle.id, 6);
    await until(async () => (await stateOf(idle.id)) === 'stopped');
    const limited = async (id: string): Promise<boolean> =>
      (
        await world.database.pool.query(
          'select 1 from sandbox_leases where sandbox_id = $1 and expires_at > now() and idle_s is null',
          [uuidOf(id)],
        )
      ).rowCount === 1;
    await until(() => limited(idle.id));
    for (const { id } of [stopped, idle]) {
      assert.equal(await stateOf(id), 'stopped');
      await later(id, 11);
      await until(async () => (await stateOf(id)) === 404);
    }
  });

  it('ttlMinutes deletes one in spite of activity', async () => {
    const { id, autoDestroyAt } = await create({ ttlMinutes: 10, autoStopInterval: 5 });
    assert.ok(autoDestroyAt !== undefined && new Date(autoDestroyAt).getTime() > Date.now());
    await later(id, 4);
    await call('POST', `/sandbox/${id}/last-activity`);
    await later(id, 7);
    await until(async () => (await stateOf(id)) === 404);
  });
});

describe('GET /sandbox', () => {
  let by: Caller;
  const made: CompatSandbox[] = [];
  before(async () => {
    by = facade(await world.stranger());
    for (const [name, cpu, label] of [
      ['Alpha', 1, 'x'],
      ['alps', 2, 'y'],
      ['beta', 3, 'x'],
    ] as const)
      made.push(await create({ name, cpu, labels: { label } }, by));
  });
  const named = async (query: string): Promise<string[]> => {
    const found = await ids(query, by);
    return found.map((id) => made.find((one) => one.id === id)?.name ?? '?');
  };

  it('pages with cursors in every order', async () => {
    assert.deepEqual(await named(''), ['beta', 'alps', 'Alpha']);
    for (const sort of ['name', 'cpu', 'memoryGib', 'diskGib', 'lastActivityAt', 'createdAt'])
      for (const order of ['asc', 'desc']) {
        const all = await named(`sort=${sort}&order=${order}`);
        const paged: string[] = [];
        let cursor: string | null = '';
        while (cursor !== null) {
          const { body } = await by('GET', `/sandbox?limit=1&sort=${sort}&order=${order}&cursor=${cursor}`);
          paged.push(...body.items.map(({ name }: { name: string }) => name));
          cursor = body.nextCursor;
        }
        assert.deepEqual(paged, all, `${sort} ${order}`);
        assert.equal(paged.length, 3);
      }
    assert.deepEqual(await named('sort=cpu&order=asc'), ['Alpha', 'alps', 'beta']);
  });

  it('filters by prefixes, labels, states, sizes and times', async () => {
    const [alpha] = made;
    const uuid = (await inspect(world.database, { uuid: uuidOf(alpha?.id ?? '') })).id;
    const rows: [string, string[]][] = [
      ['name=AL', ['alps', 'Alpha']],
      ['name=ph', []],
      ['name=%25', []],
      [`id=${alpha?.id}`, ['Alpha']],
      [`id=${alpha?.id.slice(0, 12).toUpperCase()}`, ['Alpha']],
      [`id=${uuid.slice(0, 12)}`, ['Alpha']],
      ['id=he', ['beta', 'alps', 'Alpha']],
      ['id=here-', ['beta', 'alps', 'Alpha']],
      ['id=here-!', []],
      [`labels=${encodeURIComponent('{"label":"x"}')}`, ['beta', 'Alpha']],
      ['labels=%7B%7D', ['beta', 'alps', 'Alpha']],
      ['states=started&states=error', ['beta', 'alps', 'Alpha']],
      ['states=archived', []],
      ['snapshots=busybox', ['beta', 'alps', 'Alpha']],
      ['regionIds=there', []],
      ['minCpu=2&maxCpu=2', ['alps']],
      ['minMemoryGiB=1&maxMemoryGiB=1.5', ['beta', 'alps', 'Alpha']],
      ['minDiskGiB=4', []],
      [
        `createdAtAfter=${encodeURIComponent(alpha?.createdAt ?? '')}&createdAtBefore=2100-01-01T00:00:00Z&maxCpu=1`,
        ['Alpha'],
      ],
      ['lastEventBefore=2001-01-01', []],
      ['isPublic=true', []],
      ['isPublic=false&isRecoverable=false', ['beta', 'alps', 'Alpha']],
    ];
    for (const [query, names] of rows) assert.deepEqual(await named(query), names, query);
  });

  it('refuses malformed parameters', async () => {
    const cursor = (value: unknown, sort = 'createdAt', id: unknown = newUuid(), version = 1): string => {
      const json = JSON.stringify([version, sort, 'desc', value, id]);
      return `sort=${sort}&cursor=${Buffer.from(json).toString('base64url')}`;
    };
    const time = '2026-01-02 03:04:05.678+00';
    assert.deepEqual(await named(cursor(time)), []);
    for (const query of [
      'cursor=abc',
      'cursor=bnVsbA',
      `cursor=${'A'.repeat(4000)}`,
      ...[
        '2026-13-45 00:00:00+00',
        '2026-02-30 00:00:00+00',
        '0000-01-01 00:00:00+00',
        `${time}9`,
        null,
        7,
      ].map((value) => cursor(value)),
      cursor('2026-01-01 00:00:00+99'),
      cursor(time, 'createdAt', 'x'),
      cursor(time, 'createdAt', newUuid(), 2),
      cursor('1e9', 'cpu'),
      cursor('99999999999', 'diskGib'),
      cursor('a\0', 'name'),
      'limit=1.5',
      'sort=size',
      'order=up',
      'limit=x',
      'labels=%5B%5D',
      'labels=x',
      `labels=${encodeURIComponent(String.raw`{"a":"\ud800"}`)}`,
      'minCpu=-1',
      'createdAtAfter=x',
      'isPublic=1',
      'name=a&name=b',
      'name=%00',
      'states=%27',
    ])
      await refused(by('GET', `/sandbox?${query}`), 400);
    const { body } = await by('GET', '/sandbox?limit=1');
    assert.match(
      await refused(by('GET', `/sandbox?sort=name&cursor=${body.nextCursor}`), 400),
      /malformed cursor/,
    );
  });
});

describe('what the facade does not have', () => {
  it('answers 501 with the name of the operation, also for unlisted routes and other methods', async () => {
    for (const { method, path, name } of UNSUPPORTED_OPERATIONS) {
      const message = await refused(call(method, path.replaceAll(/:\w+/g, '1')), 501);
      assert.ok(message.startsWith(`${name} is not supported`), message);
    }
    for (const [method, path] of [
      ['GET', '/'],
      ['PUT', '/sandbox'],
      ['PATCH', '/snapshots/x'],
      ['GET', '/config'],
    ] as const)
      assert.match(await refused(call(method, path), 501), new RegExp(`^${method} ${path}`));
    assert.match(await refused(call('GET', '//sandbox'), 501), /slash at the end of apiUrl/);
    assert.match(await refused(call('GET', '/sandbox/%ff'), 400), /not a valid URL path/);
  });

  it('needs an API key of a project', async () => {
    for (const key of [undefined, 'rlp_x'])
      for (const path of ['/sandbox', '/volumes', '/snapshots/x'])
        await refused(
          call('GET', path, undefined, {
            headers: { authorization: key === undefined ? '' : `Bearer ${key}` },
          }),
          401,
        );
  });
});

it('refuses creates without credits with 402, and a full queue with 429, as errors of the SDK with headers', async () => {
  const thrown = async (): Promise<Untyped> => {
    const client = new sdk.Daytona({ apiKey: call.key, apiUrl: world.url + COMPAT_PREFIX });
    return await client.create({ snapshot: 'busybox' }).then(assert.fail, (error: unknown) => error);
  };
  await world.restart({ billing: { mode: 'enforce' } });
  const poor = await thrown();
  assert.deepEqual(
    [poor.constructor, poor.statusCode, poor.errorCode],
    [sdk.DaytonaError, 402, 'PAYMENT_REQUIRED'],
  );
  assert.match(poor.message, /out of credits/);
  assert.ok(poor.headers['x-request-id']);

  await world.restart({ limits: { createQueue: 0 } });
  const busy = await thrown();
  assert.deepEqual(
    [busy.constructor, busy.statusCode, busy.errorCode, busy.headers['retry-after']],
    [sdk.DaytonaRateLimitError, 429, 'TOO_MANY_REQUESTS', '2'],
  );
  const { headers, body } = await call('POST', '/sandbox', {});
  assert.deepEqual([headers.get('retry-after'), body.retry_after_secs], ['2', 2]);
  await world.restart();
});

it('refuses a create without a source when the deployment has no default', async () => {
  await world.restart({ compatSnapshot: undefined });
  assert.match(await refused(call('POST', '/sandbox', {}), 400), /snapshot or image is required/);
});

const uuidOf = (id: string): string => parseSandboxId(id)?.uuid ?? '';

async function worldCall(method: string, path: string): Promise<Answer> {
  const response = await fetch(world.url + path, {
    method,
    headers: { authorization: `Bearer ${call.key}` },
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, text, body: JSON.parse(text) };
}
