/** The operations of an operator on hosts: list, drain, evict spot sandboxes. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { Stage } from './support/lifecycle.ts';
import {
  caller,
  create,
  obedient,
  startWorld,
  until,
  waitFor,
  hosts,
  type Answer,
  type World,
} from '@releap/testing/world';

let world: World;
let stage: Stage;
beforeEach(async () => {
  world = await startWorld({ limits: { overcommit: { cpu: 8, mem: 4, disk: 4, tier: 'spot' } } });
  stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
});
afterEach(async () => world[Symbol.asyncDispose]());

const ask = (verb: string, body?: object, id = stage.runner.id): Promise<Answer> =>
  world.operator('POST', `/operator/hosts/${id}/${verb}`, body);
const status = async (vm: { id: string }) => (await world.call('GET', `/vms/${vm.id}`)).body.status;
/** Leaves everything to the runner again. */
const obey = (): void => {
  stage.left.clear();
  stage.runner.options.script = obedient;
};

describe('GET /operator/hosts', () => {
  it('shows facts, capacity, status and the resources of each host', async () => {
    await stage.running();
    await stage.paused({ mem_mib: 2048 });
    const vm = await stage.running({ persistent: false, cpu: 2 });
    await world.call('POST', `/vms/${vm.id}/snapshots`, { name: 's' });
    await until(async () => (await hosts(world))[0]?.used.disk_mib === 3 * 512 + 2048 + 1);
    const [host] = await hosts(world);
    assert.ok(host);
    assert.deepEqual(
      [host.id, host.region, host.status, host.ready, host.draining, host.draining_since, host.force],
      [stage.runner.id, 'here', 'online', true, false, null, false],
    );
    assert.deepEqual(host.sandboxes, { running: 2, paused: 1 });
    assert.deepEqual(host.used, { cpu: 2.125, mem_mib: 2048, disk_mib: 3 * 512 + 2048 + 1, gpus: 0 });
    assert.deepEqual([host.snapshots, host.facts.cores, host.allocatable.cpu], [1, 64, 64]);
  });

  it('401 without the operator token; an API key is none. 404 for a host that is not known', async () => {
    for (const { key, projectId } of [world.call, await world.stranger()]) {
      const call = caller(() => world.internalUrl, key, projectId);
      assert.equal((await call('GET', '/operator/hosts')).status, 401);
      for (const verb of ['drain', 'undrain', 'evict'])
        assert.equal((await call('POST', `/operator/hosts/${stage.runner.id}/${verb}`)).status, 401);
    }
    for (const verb of ['drain', 'undrain', 'evict'])
      for (const id of ['nonsense', '00000000-0000-4000-8000-000000000000']) {
        const answer = await ask(verb, undefined, id);
        assert.deepEqual([answer.status, answer.body.error], [404, `host "${id}" not found`]);
      }
    assert.equal((await ask('drain', { force: 'yes' })).status, 400);
  });
});

describe('POST /operator/hosts/:id/drain', () => {
  it('pauses what is persistent, stops it where its memory cannot be saved, evicts spot, lets ephemeral ones continue; reports it', async () => {
    const paused = await stage.running();
    const stopped = await stage.running({ docker_data_mib: 512 });
    const spotPaused = await stage.running({ spot: true });
    const spotDeleted = await stage.running({ spot: true, persistent: false });
    const goesOn = await stage.running({ persistent: false });
    const resting = await stage.stopped();
    const { status: code, body } = await ask('drain');
    assert.equal(code, 200);
    assert.deepEqual(
      [body.moved.paused.sort(), body.moved.stopped, body.moved.deleted],
      [[paused.id, spotPaused.id].sort(), [stopped.id], [spotDeleted.id]],
    );
    assert.deepEqual(body.remaining, [
      { vm_id: goesOn.id, status: 'running', persistent: false, spot: false },
    ]);
    assert.deepEqual([body.host.draining, body.host.force], [true, false]);
    await stage.report(paused, 'paused');
    await stage.report(stopped, 'stopped');
    assert.deepEqual(
      [
        await status(paused),
        await status(stopped),
        await status(spotPaused),
        await status(spotDeleted),
        await status(resting),
      ],
      ['paused', 'stopped', 'pausing', 'deleting', 'stopped'],
    );
    const evicted = async (vm: { id: string }) =>
      (await world.call('GET', `/vms/${vm.id}`)).body.spot_evicted_at !== null;
    assert.deepEqual([await evicted(paused), await evicted(spotPaused)], [false, true]);
  });

  it('force: deletes ephemeral ones too, and says why', async () => {
    const vm = await stage.running({ persistent: false });
    assert.deepEqual((await ask('drain')).body.moved.deleted, []);
    const { moved, remaining } = (await ask('drain', { force: true })).body;
    assert.deepEqual([moved.deleted, remaining], [[vm.id], []]);
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.error, 'its host was drained');
  });

  it('may be repeated, and does nothing twice', async () => {
    const vm = await stage.running();
    const first = (await ask('drain')).body;
    const again = (await ask('drain')).body;
    assert.deepEqual([first.moved.paused, again.moved.paused], [[vm.id], []]);
    assert.equal(again.host.draining_since, first.host.draining_since);
  });

  it('takes no new sandboxes, starts or resumes, and says so; undrain ends it', async () => {
    const stopped = await stage.stopped();
    const paused = await stage.paused();
    await ask('drain');
    await until(async () => (await world.call('GET', '/healthz')).status === 503);
    await stage.refused(stopped, 'start', /its host [0-9a-f-]+, which has its disk, is being drained$/);
    await stage.refused(paused, 'resume', /is being drained$/);
    const waits = await create(world.call, world);
    await world.control.sweep();
    assert.equal(await status(waits), 'pending');
    await world.database.pool.query(`update sandboxes set deadline_at = now() where id = $1`, [waits.uuid]);
    await until(async () => (await status(waits)) === 'failed');
    assert.match(
      (await world.call('GET', `/vms/${waits.id}`)).body.error,
      /no host of region "here" accepts sandboxes: all ready ones are being drained$/,
    );
    const next = await create(world.call, world);
    const { host } = (await ask('undrain')).body;
    assert.deepEqual([host.draining, host.draining_since, host.force], [false, null, false]);
    await waitFor(world.call, next.id, 'running');
    await stage.ok(stopped, 'start');
  });

  it('continues with sandboxes that start to run later, over a restart of the server', async () => {
    stage.runner.options.script = () => undefined;
    const vm = await create(world.call, world, { persistent: true });
    const assignment = await stage.runner.assigned(vm.uuid);
    const { moved, remaining } = (await ask('drain')).body;
    assert.deepEqual([moved.paused, remaining[0].status], [[], 'assigned']);
    await world.restart();
    await stage.runner.connect();
    await stage.runner.observed(assignment, { status: 'running', manifest_name: 'sha256:1' });
    await stage.runner.assigned(vm.uuid, (one) => one.desired === 'paused');
    assert.equal((await hosts(world))[0]?.draining, true);
  });

  it('one that cannot be paused continues with the reason, and is not asked again at once', async () => {
    const vm = await stage.running();
    await ask('drain');
    await stage.report(vm, 'running', { error: 'no space left on device' });
    await world.control.sweep();
    await world.control.sweep();
    const record = (await world.call('GET', `/vms/${vm.id}`)).body;
    assert.deepEqual([record.status, record.error], ['running', 'no space left on device']);
    await world.database.pool.query(
      `update sandboxes set updated_at = now() - interval '1 minute' where id = $1`,
      [vm.uuid],
    );
    await until(async () => (await status(vm)) === 'pausing');
  });

  it('a disconnected host keeps its sandboxes until it is connected again', async () => {
    const vm = await stage.running();
    stage.runner.drop();
    await until(async () => (await hosts(world))[0]?.status === 'offline');
    assert.deepEqual((await ask('drain')).body.moved.paused, []);
    assert.equal(await status(vm), 'running');
    obey();
    await stage.runner.connect();
    await until(async () => (await status(vm)) === 'paused');
  });
});

describe('POST /operator/hosts/:id/evict', () => {
  it('one spot sandbox, or all of them, and nothing else', async () => {
    const plain = await stage.running();
    const one = await stage.running({ spot: true });
    const two = await stage.running({ spot: true, persistent: false });
    const three = await stage.running({ spot: true });
    await stage.force(three, 'booting');
    assert.deepEqual((await ask('evict', { vm_id: one.id })).body, {
      evicted: [{ vm_id: one.id, status: 'pausing' }],
      remaining: [],
    });
    assert.deepEqual((await ask('evict')).body, {
      evicted: [{ vm_id: two.id, status: 'deleting' }],
      remaining: [{ vm_id: three.id, reason: 'it is booting, and must be running' }],
    });
    assert.equal(await status(plain), 'running');
    assert.equal((await hosts(world))[0]?.draining, false);
  });

  it('404: not on that host. 409: not in the spot tier, or not running', async () => {
    const plain = await stage.running();
    const other = await world.runner({ ready: false });
    assert.equal((await ask('evict', { vm_id: plain.id }, other.id)).status, 404);
    assert.equal((await ask('evict', { vm_id: 'nonsense' })).status, 404);
    const answer = await ask('evict', { vm_id: plain.id });
    assert.deepEqual(
      [answer.status, answer.body.error],
      [409, `sandbox "${plain.id}" cannot be evicted: it is not in the spot tier`],
    );
    const spot = await stage.paused({ spot: true });
    assert.match((await ask('evict', { vm_id: spot.id })).body.error, /it is paused, and must be running$/);
  });
});
