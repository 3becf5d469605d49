/** `POST /sandbox`. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspect } from '@releap/testing/inspect';
import { refused } from '../support/compat.ts';
import { call, create, ids, native, uuidOf, world } from '../support/compat-sandboxes.ts';

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
    const { body: shown } = await native('GET', `/vms/${made.id}`);
    assert.deepEqual(
      [shown.mode, shown.persistent, shown.spot, shown.scratch_mib],
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
