/** Regions, as the operator sees and changes them. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { create, hosts, startWorld, until, waitFor, type Answer, type World } from '@releap/testing/world';

let world: World;
before(async () => {
  world = await startWorld();
});
after(() => world[Symbol.asyncDispose]());

const PATH = '/operator/regions';
const make = (body: object): Promise<Answer> => world.operator('POST', PATH, body);
const change = (id: string, body: object): Promise<Answer> => world.operator('PATCH', `${PATH}/${id}`, body);
const remove = (id: string): Promise<Answer> => world.operator('DELETE', `${PATH}/${id}`);
const post = (body: object): Promise<Answer> => world.call('POST', '/vms', { image: 'busybox', ...body });
const listed = async (): Promise<string[]> =>
  (await world.call('GET', '/regions')).body.map(({ id }: { id: string }) => id);
const read = async (id: string) =>
  (await world.operator('GET', PATH)).body.regions.find((one: { id: string }) => one.id === id);

async function made(id: string, body: object = {}): Promise<void> {
  const answer = await make({ id, ...body });
  assert.equal(answer.status, 201, answer.text);
  await until(async () => (await listed()).includes(id) || answer.body.enabled === false);
}

describe('a region', () => {
  it('is created with what its clients see, and hosts join it', async () => {
    const answer = await make({
      id: 'east',
      name: 'East',
      toolbox_proxy_url: 'https://gw.east.test/',
      preview_url: null,
    });
    assert.equal(answer.status, 201, answer.text);
    assert.deepEqual(answer.body, {
      id: 'east',
      name: 'East',
      enabled: true,
      is_default: false,
      global_region_id: null,
      toolbox_proxy_url: 'https://gw.east.test',
      preview_url: null,
      store: null,
      hosts: 0,
      sandboxes: 0,
      default_of: { organizations: 0, projects: 0 },
    });
    await until(async () => (await listed()).includes('east'));
    const { id } = await world.runner({ region: 'east' });
    assert.ok((await hosts(world)).some((host) => host.id === id && host.region === 'east'));
    const vm = await create(world.call, world, { region: 'east' });
    assert.equal((await waitFor(world.call, vm.id, 'running')).runner_id, id);
    assert.deepEqual([(await read('east')).hosts, (await read('east')).sandboxes], [1, 1]);
  });

  it('that is disabled takes no new sandboxes, and its present ones continue to run', async () => {
    await made('south', { toolbox_proxy_url: 'https://gw.south.test' });
    await world.runner({ region: 'south' });
    const vm = await create(world.call, world, { region: 'south', persistent: true });
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await change('south', { enabled: false })).body.enabled, false);
    await until(async () => !(await listed()).includes('south'));
    const refused = await post({ region: 'south' });
    assert.deepEqual([refused.status, refused.body.code], [400, 'unknown_region']);
    assert.match(refused.body.error, /region "south" is disabled/);
    for (const [verb, status] of [
      ['stop', 'stopped'],
      ['start', 'running'],
    ] as const) {
      assert.equal((await world.call('POST', `/vms/${vm.id}/${verb}`)).status, 200);
      await waitFor(world.call, vm.id, status);
    }
    // Clients that have a sandbox there find its toolbox.
    const all = (await world.call('GET', '/regions?include_disabled=true')).body;
    const south = all.find(({ id }: { id: string }) => id === 'south');
    assert.deepEqual([south.status, south.toolbox_proxy_url], ['disabled', 'https://gw.south.test']);
    assert.equal((await change('south', { enabled: true })).status, 200);
    await until(async () => (await post({ region: 'south' })).status === 200);
  });

  it('keeps what a change does not name, and loses what is null', async () => {
    await made('kept', { name: 'Kept', toolbox_proxy_url: 'https://t.test', preview_url: 'https://p.test' });
    const { body } = await change('kept', { preview_url: null });
    assert.deepEqual([body.name, body.toolbox_proxy_url, body.preview_url], ['Kept', 'https://t.test', null]);
  });

  it('is refused with a field that is not valid', async () => {
    for (const [body, status] of [
      [{ id: 'Not a slug' }, 400],
      [{ id: 'x'.repeat(40) }, 400],
      [{ id: 'world' }, 400],
      [{ id: 'here' }, 409],
      [{ id: 'new', toolbox_proxy_url: 'ftp://x' }, 400],
      [{ id: 'new', global_region_id: 'nowhere' }, 400],
      [{ id: 'new', is_default: false }, 400],
      [{ id: 'new', enabled: false, is_default: true }, 409],
      [{ id: 'new', name: ' \u0007' }, 400],
    ] as const)
      assert.equal((await make(body)).status, status, JSON.stringify(body));
    assert.equal(await read('new'), undefined, 'nothing is left of it');
    assert.equal((await change('nowhere', { name: 'x' })).status, 404);
    assert.equal((await change('here', {})).status, 400);
    assert.equal((await remove('nowhere')).status, 404);
  });

  it('is changed by the operator only, and every change is in the audit', async () => {
    for (const call of [world.gateway, await world.stranger()])
      assert.ok([401, 404].includes((await call('POST', PATH, { id: 'mine' })).status));
    await made('seen');
    const { entries } = (await world.operator('GET', '/operator/audit')).body;
    const entry = entries.find((one: { operation: string }) => one.operation === 'createRegion');
    assert.deepEqual([entry.outcome, entry.request.id], ['done', 'seen']);
  });
});

describe('the default of the platform', () => {
  it('is one enabled region at any time', async () => {
    await made('main');
    const refused = await change('here', { enabled: false });
    assert.equal(refused.status, 409);
    assert.match(
      refused.body.error,
      /"here" is the default of the platform: make another one the default first/,
    );
    await made('off', { enabled: false });
    assert.equal((await change('off', { is_default: true })).status, 409);
    assert.equal((await change('main', { is_default: true })).body.is_default, true);
    assert.equal((await read('here')).is_default, false);
    await until(async () => (await post({})).body.vm_id.startsWith('main-'));
    assert.equal((await change('main', { enabled: false })).status, 409);
    assert.equal((await change('here', { is_default: true })).status, 200);
    assert.equal((await change('main', { enabled: false })).status, 200);
  });

  it('stays one when several are made it, and disabled, at once', async () => {
    const ids = ['a', 'b', 'c', 'd'];
    for (const id of ids) await made(id);
    for (let round = 0; round < 3; round++) {
      await Promise.all(
        ids.flatMap((id) => [
          change(id, { is_default: true, enabled: true }),
          change(id, { enabled: false }),
        ]),
      );
      const { rows } = await world.database.pool.query('select enabled from regions where is_default');
      assert.deepEqual(rows, [{ enabled: true }]);
    }
    assert.equal((await change('here', { is_default: true })).status, 200);
  });
});

describe('the default of an organization and a project', () => {
  it('"project default, then organization default, then platform default"', async () => {
    await made('org-region');
    await made('project-region');
    const project = await world.stranger();
    const { rows } = await world.database.pool.query('select org_id from projects where id = $1', [
      project.projectId,
    ]);
    const org = String(rows[0].org_id);
    const set = (what: string, id: string, region: string | null): Promise<Answer> =>
      world.operator('PUT', `/operator/${what}/${id}/default-region`, { region });
    const goesTo = async (region: string): Promise<void> =>
      until(
        async () =>
          (await project('POST', '/vms', { image: 'busybox' })).body.vm_id?.startsWith(`${region}-`) === true,
      );
    await goesTo('here');
    assert.deepEqual((await set('orgs', org, 'org-region')).body, { id: org, region: 'org-region' });
    await goesTo('org-region');
    assert.equal((await set('projects', project.projectId, 'project-region')).status, 200);
    await goesTo('project-region');
    assert.deepEqual((await read('project-region')).default_of, { organizations: 0, projects: 1 });
    const disabled = await change('project-region', { enabled: false });
    assert.equal(disabled.body.default_of.projects, 1);
    await until(async () => (await project('POST', '/vms', { image: 'busybox' })).status === 400);
    assert.match((await remove('project-region')).body.error, /1 project that use it by default/);
    assert.equal((await set('projects', project.projectId, null)).status, 200);
    await goesTo('org-region');
    assert.equal((await set('projects', project.projectId, 'project-region')).body.code, 'unknown_region');
    assert.equal((await set('projects', project.projectId, 'nowhere')).status, 400);
    assert.equal((await set('projects', org, 'here')).status, 404);
    assert.equal((await set('orgs', 'nonsense', 'here')).status, 404);
    assert.equal((await set('orgs', org, 'world')).status, 200);
    const audit = await world.database.pool.query(
      `select project_id, details from audit_log where action = 'default-region.set' and org_id = $1 order by created_at`,
      [org],
    );
    assert.deepEqual(
      audit.rows.map((row) => row.details.region),
      ['org-region', 'project-region', null, 'world'],
    );
  });
});

describe('the deletion of a region', () => {
  it('409 with what is there', async () => {
    await made('full');
    const runner = await world.runner({ region: 'full' });
    const vm = await create(world.call, world, { region: 'full' });
    await waitFor(world.call, vm.id, 'running');
    await world.call('POST', `/vms/${vm.id}/snapshots`, { name: 'in-full' });
    await world.call('POST', '/images', {
      name: 'in-full',
      source: { type: 'registry', ref: 'example.test/a:1' },
      region: 'full',
    });
    assert.match((await remove('full')).body.error, /"full" is enabled: disable it first/);
    await change('full', { enabled: false });
    const refused = await remove('full');
    assert.deepEqual([refused.status, refused.body.code], [409, 'in_use']);
    assert.match(refused.body.error, /is not empty: it has 1 host, 1 image, 1 sandbox, 1 snapshot$/);
    await until(async () => (await world.call('GET', '/snapshots')).body.snapshots[0].status === 'ready');
    const { id } = (await world.call('GET', '/snapshots')).body.snapshots[0];
    assert.equal((await world.call('DELETE', `/snapshots/${id}`)).status, 200);
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
    await until(async () => !(await remove('full')).body.error.includes('1 snapshot,'));
    const kept = (await remove('full')).body.error;
    assert.match(
      kept,
      /1 host, 1 image, 1 deleted sandbox.* \(what was deleted or forgotten is kept for RELEAP_RETENTION_DAYS\)$/,
    );
    assert.ok((await hosts(world)).some((host) => host.id === runner.id));
    assert.equal((await read('full')).enabled, false);
  });

  it('leaves nothing of an empty one', async () => {
    await made('brief');
    assert.equal((await change('brief', { enabled: false })).status, 200);
    assert.equal((await remove('brief')).status, 204);
    assert.equal(await read('brief'), undefined);
    assert.equal((await remove('brief')).status, 404);
  });
});

describe('global regions', () => {
  it('are created, filled, renamed and deleted', async () => {
    const path = '/operator/global-regions';
    const group = await world.operator('POST', path, { id: 'europe', name: 'Europe' });
    assert.deepEqual([group.status, group.body], [201, { id: 'europe', name: 'Europe', members: [] }]);
    for (const id of ['europe', 'here', 'world'])
      assert.ok([400, 409].includes((await world.operator('POST', path, { id })).status), id);
    assert.equal((await make({ id: 'europe' })).status, 409);
    await made('north', { global_region_id: 'europe' });
    await until(async () => {
      const { body } = await world.call('GET', '/global-regions');
      return body.find(({ id }: { id: string }) => id === 'europe')?.member_count === 1;
    });
    assert.match((await post({ region: 'europe' })).body.vm_id, /^north-/);
    const renamed = await world.operator('PATCH', `${path}/europe`, { name: 'EU' });
    assert.deepEqual(renamed.body, { id: 'europe', name: 'EU', members: ['north'] });
    const used = await world.operator('DELETE', `${path}/europe`);
    assert.deepEqual([used.status, used.body.code], [409, 'in_use']);
    assert.match(used.body.error, /has the regions "north": take them out first/);
    assert.equal((await change('north', { global_region_id: null })).body.global_region_id, null);
    assert.equal((await world.operator('DELETE', `${path}/europe`)).status, 204);
    for (const method of ['PATCH', 'DELETE'])
      assert.equal((await world.operator(method, `${path}/europe`, { name: 'x' })).status, 404);
    await until(async () => (await post({ region: 'europe' })).status === 400);
  });
});
