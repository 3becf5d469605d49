/** Classes of hardware: the operator defines them, hosts have them, sandboxes ask for them. Names quote the specification. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, it } from 'node:test';
import {
  create,
  host,
  quiet,
  startWorld,
  until,
  waitFor,
  type Answer,
  type World,
} from '@releap/testing/world';
import { pino } from 'pino';

let world: World;
const warnings: { msg: string; classes?: unknown }[] = [];
const log = pino(
  { level: 'warn' },
  { write: (line: string) => warnings.push(JSON.parse(line) as (typeof warnings)[number]) },
);
before(async () => {
  world = await startWorld({ log });
});
after(() => world[Symbol.asyncDispose]());

const PATH = '/operator/hardware-classes';
const put = (kind: string, slug: string, body: object): Promise<Answer> =>
  world.operator('PUT', `${PATH}/${kind}/${slug}`, body);
const remove = (kind: string, slug: string): Promise<Answer> =>
  world.operator('DELETE', `${PATH}/${kind}/${slug}`);
const post = (body: object): Promise<Answer> => world.call('POST', '/vms', { image: 'busybox', ...body });
const shownAs = async (id: string) => (await host(world, id))?.classes;

async function define(kind: string, slug: string, body: object): Promise<void> {
  const answer = await put(kind, slug, body);
  assert.equal(answer.status, 200, answer.text);
}

beforeEach(async () => {
  await define('cpu_type', 'zen3', { tier: 1, arch: 'amd64', name: 'Zen 3' });
  await define('cpu_type', 'zen4', { tier: 2, arch: 'amd64', cpu_models: ['EPYC 9'] });
  await define('cpu_type', 'altra', { tier: 1, arch: 'arm64' });
  await define('network_class', 'g10', { tier: 1 });
  await define('network_class', 'g100', { tier: 2 });
  await define('disk_class', 'nvme', { tier: 1 });
});

describe('the registries', () => {
  it('"GET /cpu-types, /network-classes, /disk-classes list the slugs usable ..., each with an ordered tier"', async () => {
    await until(async () => (await world.call('GET', '/cpu-types')).body.length === 3);
    assert.deepEqual((await world.call('GET', '/cpu-types')).body, [
      { slug: 'zen3', name: 'Zen 3', tier: 1, arch: 'amd64' },
      { slug: 'zen4', name: 'zen4', tier: 2, arch: 'amd64' },
      { slug: 'altra', name: 'altra', tier: 1, arch: 'arm64' },
    ]);
    assert.deepEqual((await world.call('GET', '/network-classes')).body, [
      { slug: 'g10', name: 'g10', tier: 1 },
      { slug: 'g100', name: 'g100', tier: 2 },
    ]);
    assert.deepEqual((await world.call('GET', '/disk-classes')).body, [
      { slug: 'nvme', name: 'nvme', tier: 1 },
    ]);
  });

  it('refuse what is not a class', async () => {
    for (const [kind, slug, body, status] of [
      ['cpu_type', 'x', { tier: 1 }, 400],
      ['cpu_type', 'x', { tier: 1, arch: 'sparc' }, 400],
      ['cpu_type', 'x', { tier: 0, arch: 'amd64' }, 400],
      ['cpu_type', 'x', { tier: 1.5, arch: 'amd64' }, 400],
      ['cpu_type', 'X!', { tier: 1, arch: 'amd64' }, 400],
      ['cpu_type', 'zen3', { tier: 1, arch: 'arm64' }, 409],
      ['disk_class', 'x', { tier: 1, arch: 'amd64' }, 400],
      ['disk_class', 'x', { tier: 1, cpu_models: ['EPYC'] }, 400],
      ['gpu_type', 'x', { tier: 1 }, 400],
    ] as const)
      assert.equal((await put(kind, slug, body)).status, status, `${kind} ${slug} ${JSON.stringify(body)}`);
    assert.equal((await remove('disk_class', 'unknown')).status, 404);
  });

  it('are the operator’s: no other credential opens them, and each change is in the audit', async () => {
    assert.equal((await world.call('GET', PATH)).status, 404);
    assert.equal((await world.gateway('GET', PATH)).status, 401);
    const { entries } = (await world.operator('GET', '/operator/audit')).body;
    const entry = entries.find(
      (one: { operation: string; subject: string }) =>
        one.operation === 'putHardwareClass' && one.subject === 'cpu_type/zen4',
    );
    assert.deepEqual([entry.outcome, entry.request.tier], ['done', 2]);
  });
});

describe('the classes of a host', () => {
  it('are those that it declares, unless the operator has set others', async () => {
    const { id } = await world.runner({ facts: { classes: { cpu_type: 'zen3', disk_class: 'nvme' } } });
    assert.deepEqual(await shownAs(id), {
      cpu_type: { slug: 'zen3', tier: 1, source: 'host' },
      network_class: null,
      disk_class: { slug: 'nvme', tier: 1, source: 'host' },
    });
    const set = await world.operator('PUT', `/operator/hosts/${id}/classes`, {
      cpu_type: 'zen4',
      network_class: 'g10',
    });
    assert.equal(set.status, 200, set.text);
    assert.deepEqual(set.body.host.classes, {
      cpu_type: { slug: 'zen4', tier: 2, source: 'operator' },
      network_class: { slug: 'g10', tier: 1, source: 'operator' },
      disk_class: { slug: 'nvme', tier: 1, source: 'host' },
    });
    const back = await world.operator('PUT', `/operator/hosts/${id}/classes`, { cpu_type: null });
    assert.deepEqual(back.body.host.classes.cpu_type, { slug: 'zen3', tier: 1, source: 'host' });
    for (const body of [{ cpu_type: 'zen9' }, { cpu_type: 'altra' }, {}, { gpu: 'x' }])
      assert.equal((await world.operator('PUT', `/operator/hosts/${id}/classes`, body)).status, 400);
    const unknownHost = '00000000-0000-4000-8000-000000000000';
    assert.equal(
      (await world.operator('PUT', `/operator/hosts/${unknownHost}/classes`, { cpu_type: 'zen3' })).status,
      404,
    );
  });

  it('follow from the name of its processor where none is given', async () => {
    const { id } = await world.runner({ facts: { processor: 'AMD epyc 9454P 48-Core Processor' } });
    assert.deepEqual((await shownAs(id))?.cpu_type, { slug: 'zen4', tier: 2, source: 'model' });
  });

  it('are none where it declares an unknown one, or one of another architecture; that is logged', async () => {
    const classes = { cpu_type: 'altra', disk_class: 'floppy' };
    const { id } = await world.runner({ facts: { classes, processor: 'AMD EPYC 9454P' } });
    assert.deepEqual(await shownAs(id), { cpu_type: null, network_class: null, disk_class: null });
    const warning = warnings.find(({ msg }) => msg.startsWith('a host declares classes'));
    assert.deepEqual(warning?.classes, [
      { kind: 'cpu_type', slug: 'altra' },
      { kind: 'disk_class', slug: 'floppy' },
    ]);
  });

  it('keep the class from being deleted, and so do sandboxes that have asked for it', async () => {
    await define('disk_class', 'old', { tier: 1 });
    const runner = await world.runner({ facts: { classes: { disk_class: 'old' } } });
    const vm = await create(world.call, world, { disk_class: 'old' });
    const refused = await remove('disk_class', 'old');
    assert.deepEqual([refused.status, refused.body.code], [409, 'in_use']);
    assert.match(refused.body.error, /used by 1 host and 1 sandbox/);
    await world.operator('PUT', `/operator/hosts/${runner.id}/classes`, { disk_class: 'nvme' });
    assert.match((await remove('disk_class', 'old')).body.error, /used by 1 sandbox:/);
    await waitFor(world.call, vm.id, 'running');
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
    assert.equal((await remove('disk_class', 'old')).status, 204);
  });
});

describe('POST /vms', () => {
  const refusals: [title: string, body: object, error: RegExp][] = [
    ['unknown cpu_type', { cpu_type: 'zen9' }, /cpu_type "zen9" is unknown: use "zen3" or "zen4" or "altra"/],
    [
      'cpu_type arch mismatch',
      { cpu_type: 'altra', cpu_arch: 'amd64' },
      /"arm64", which contradicts cpu_arch "amd64"/,
    ],
    [
      'unknown network_class',
      { network_class: 'nvme' },
      /network_class "nvme" is unknown: use "g10" or "g100"/,
    ],
    ['unknown disk_class', { disk_class: 'g10' }, /disk_class "g10" is unknown: use /],
    [
      'network_class with gpu_host',
      { network_class: 'g10', gpu_host: 1 },
      /cannot be combined with gpu_host/,
    ],
    ['disk_class with gpu_host', { disk_class: 'nvme', gpu_host: 1 }, /cannot be combined with gpu_host/],
  ];
  for (const [title, body, error] of refusals)
    it(`400: ${title}`, async () => {
      const answer = await post(body);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, error);
    });
});

describe('placement of sandboxes', () => {
  let fleet: World;
  const ids: Record<string, string> = {};
  before(async () => {
    fleet = await startWorld({ log: quiet });
    const classes = { zen3: 1, zen4: 2, zen5: 3 };
    for (const [slug, tier] of Object.entries(classes))
      await fleet.operator('PUT', `${PATH}/cpu_type/${slug}`, { tier, arch: 'amd64' });
    await fleet.operator('PUT', `${PATH}/cpu_type/altra`, { tier: 1, arch: 'arm64' });
    await fleet.operator('PUT', `${PATH}/cpu_type/altra2`, { tier: 2, arch: 'arm64' });
    for (const [name, cores, slug] of [
      ['small', 1, 'zen4'],
      ['large', 8, 'zen5'],
      ['lowest', 64, 'zen3'],
    ] as const)
      ids[name] = (await fleet.runner({ facts: { cores, classes: { cpu_type: slug } } })).id;
    ids['arm'] = (await fleet.runner({ facts: { arch: 'arm64', classes: { cpu_type: 'altra' } } })).id;
  });
  after(() => fleet[Symbol.asyncDispose]());

  const placed = async (body: object): Promise<string | undefined> => {
    const vm = await create(fleet.call, fleet, { persistent: true, ...body });
    return (await waitFor(fleet.call, vm.id, 'running')).runner_id;
  };

  it('"prefers an exact tier and falls back only upward"', async () => {
    const dedicated = { mode: 'dedicated', cpu: 1, cpu_type: 'zen4' };
    assert.equal(await placed(dedicated), ids['small']);
    assert.equal(await placed(dedicated), ids['large']);
  });

  it('cpu_type "implies architecture"', async () => {
    assert.equal(await placed({ cpu_type: 'altra' }), ids['arm']);
    assert.equal(await placed({ cpu_type: 'altra', cpu_arch: 'arm64' }), ids['arm']);
  });

  it('a sandbox that no host can have fails with the reason', async () => {
    const vm = await create(fleet.call, fleet, { cpu_type: 'altra2' });
    const { error } = await waitFor(fleet.call, vm.id, 'failed');
    assert.match(
      error ?? '',
      /no host of region "here" has cpu_type "altra2" \(tier 2\) or a higher one \(available: cpu_type "altra" \(tier 1\)\)/,
    );
  });

  it('a fork asks for what its source has asked for', async () => {
    const vm = await create(fleet.call, fleet, { persistent: true, cpu_type: 'zen3' });
    await waitFor(fleet.call, vm.id, 'running');
    const fork = await fleet.call('POST', `/vms/${vm.id}/fork`);
    assert.equal(fork.status, 200, fork.text);
    const { rows } = await fleet.database.pool.query(
      `select spec -> 'classes' as classes from sandboxes where forked_from = $1`,
      [vm.uuid],
    );
    assert.deepEqual(rows, [{ classes: { cpu_type: 'zen3' } }]);
  });

  it('a restore asks for what its request says', async () => {
    const vm = await create(fleet.call, fleet, { cpu_type: 'zen3' });
    await waitFor(fleet.call, vm.id, 'running');
    await fleet.call('POST', `/vms/${vm.id}/snapshots`, { name: 'base' });
    await until(async () => (await fleet.call('GET', '/snapshots')).body.snapshots[0]?.status === 'ready');
    const image = { type: 'snapshot', name: 'base' };
    const restored = await create(fleet.call, fleet, { image });
    const asked = await create(fleet.call, fleet, { image, cpu_type: 'zen3' });
    const { rows } = await fleet.database.pool.query(
      `select spec -> 'classes' as classes from sandboxes where id = any($1::uuid[]) order by id = $2`,
      [[restored.uuid, asked.uuid], asked.uuid],
    );
    assert.deepEqual(rows, [{ classes: null }, { classes: { cpu_type: 'zen3' } }]);
    assert.equal((await fleet.call('POST', '/vms', { image, cpu_type: 'altra' })).status, 400);
  });
});
