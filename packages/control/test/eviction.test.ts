/** The spot tier: which sandboxes are evicted when a non-spot one finds no capacity. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import * as fc from 'fast-check';
import { chooseEviction, type Evictable } from '../src/compute/scheduler/eviction.ts';
import { fits, free, plus, type Host, type Need } from '../src/compute/scheduler/placement.ts';
import {
  create,
  FACTS,
  obedient,
  startWorld,
  until,
  waitFor,
  type Created,
  type Script,
  type World,
} from '@releap/testing/world';

const overcommit = { cpu: 1, mem: 1, disk: 1, tier: 'spot' } as const;
const host = (id: string, used: Partial<Host['used']> = {}, extra: Partial<Host> = {}): Host => ({
  id,
  region: 'here',
  ready: true,
  draining: false,
  used: { cpu: 8, mem_mib: 8000, disk_mib: 0, gpus: 0, ...used },
  facts: { ...FACTS, cores: 8, mem_mib: 8000, disk_mib: 10_000 },
  ...extra,
});
const need = (extra: Partial<Need> = {}): Need => ({
  region: 'here',
  arch: 'amd64',
  requiredRunnerId: null,
  cpu: 1,
  mem_mib: 1000,
  disk_mib: 100,
  gpus: 0,
  overcommitted: false,
  ...extra,
});
let age = 0;
const spot = (id: string, on: string, cpu: number, mem = 1000, disk = 100): Evictable => ({
  id,
  runner_id: on,
  created_at: new Date(1_000_000 + ++age * 1000),
  frees: { cpu, mem_mib: mem, disk_mib: disk, gpus: 0 },
});
const gone = (...args: Parameters<typeof chooseEviction>): string[] | undefined =>
  chooseEviction(...args)
    ?.evict.map((one) => one.id)
    .sort();

describe('the choice of sandboxes to evict', () => {
  it('the newest of those that are enough alone', () => {
    const all = [spot('old', 'a', 2), spot('new', 'a', 2), spot('newest, too small', 'a', 0.5)];
    assert.deepEqual(gone(need({ cpu: 2 }), [host('a')], all, overcommit), ['new']);
  });

  it('the fewest: one large one rather than three small ones, on whichever host', () => {
    const all = [spot('large', 'a', 3, 3000), spot('s1', 'b', 1), spot('s2', 'b', 1), spot('s3', 'b', 1)];
    assert.deepEqual(gone(need({ cpu: 3, mem_mib: 3000 }), [host('a'), host('b')], all, overcommit), [
      'large',
    ]);
  });

  it('several when it must be, and none that is not needed', () => {
    const all = [spot('s1', 'a', 1), spot('s2', 'a', 1), spot('s3', 'a', 1), spot('s4', 'a', 1)];
    assert.deepEqual(gone(need({ cpu: 3, mem_mib: 1000 }), [host('a')], all, overcommit)?.length, 3);
  });

  it('is empty where eviction would not help: too little, another region, a draining or absent host', () => {
    assert.equal(gone(need({ cpu: 4 }), [host('a')], [spot('x', 'a', 2)], overcommit), undefined);
    const enough = [spot('y', 'a', 4, 8000)];
    for (const extra of [{ region: 'there' }, { draining: true }, { ready: false }])
      assert.equal(gone(need(), [host('a', {}, extra)], enough, overcommit), undefined);
    assert.equal(gone(need({ requiredRunnerId: 'b' }), [host('a')], enough, overcommit), undefined);
    // Paused, it needs disk for its memory, and there is none.
    assert.equal(
      gone(need(), [host('a', { disk_mib: 9_500 })], [spot('z', 'a', 4, 8000, -1000)], overcommit),
      undefined,
    );
  });

  it('frees enough capacity, and no sandbox of it could stay', () => {
    const rooms = fc.record({ cpu: fc.integer({ min: 0, max: 4 }), mem: fc.integer({ min: 0, max: 4000 }) });
    fc.assert(
      fc.property(fc.array(rooms, { maxLength: 8 }), rooms, (given, wanted) => {
        const all = given.map((one, index) => spot(`s${index}`, 'a', one.cpu, one.mem));
        const asked = need({ cpu: wanted.cpu + 0.125, mem_mib: wanted.mem + 1, disk_mib: 0 });
        const choice = chooseEviction(asked, [host('a')], all, overcommit);
        const unused = free(host('a'));
        const withAll = all.reduce((sum, one) => plus(sum, one.frees), unused);
        assert.equal(choice !== undefined, fits(asked, withAll));
        const after = (choice?.evict ?? []).reduce((sum, one) => plus(sum, one.frees), unused);
        if (choice !== undefined) assert.ok(fits(asked, after));
        for (const one of choice?.evict ?? []) assert.ok(!fits(asked, plus(after, one.frees, -1)), one.id);
      }),
    );
  });
});

describe('a host that is full', () => {
  const full = { mode: 'dedicated', cpu: 4, mem_mib: 1000 };
  const crowded = async (script: Script = obedient): Promise<World> => {
    const world = await startWorld({ limits: { overcommit } });
    await world.runner({ facts: { cores: 8, mem_mib: 16_000, disk_mib: 50_000 }, script });
    return world;
  };
  const running = async (world: World, body: object): Promise<Created> => {
    const vm = await create(world.call, world, { ...full, ...body });
    await waitFor(world.call, vm.id, 'running');
    return vm;
  };
  const read = async (world: World, vm: Created) => (await world.call('GET', `/vms/${vm.id}`)).body;

  it('spot, persistent: paused, with spot_evicted_at, and the non-spot sandbox gets its capacity', async () => {
    await using world = await crowded();
    const kept = await running(world, { persistent: true });
    const evicted = await running(world, { persistent: true, spot: true });
    const wanted = await create(world.call, world, full);
    await waitFor(world.call, wanted.id, 'running');
    const record = await read(world, evicted);
    assert.equal(record.status, 'paused');
    assert.ok(Math.abs(Date.parse(record.spot_evicted_at) - Date.now()) < 60_000);
    assert.equal((await read(world, kept)).status, 'running');
    const resume = await world.call('POST', `/vms/${evicted.id}/resume`);
    assert.equal(resume.status, 409);
    assert.match(resume.body.error, /lacks the capacity for it now: it needs 4 cores \(0 free\)$/);
  });

  it('spot, ephemeral: deleted, with spot_evicted_at', async () => {
    await using world = await crowded();
    const old = await running(world, { spot: true });
    const young = await running(world, { spot: true });
    const wanted = await create(world.call, world, full);
    await waitFor(world.call, wanted.id, 'running');
    await waitFor(world.call, young.id, 'deleted');
    assert.notEqual((await read(world, young)).spot_evicted_at, null);
    assert.equal((await read(world, old)).status, 'running');
  });

  it('spot, persistent, whose memory cannot be kept: stopped', async () => {
    await using world = await crowded();
    await running(world, {});
    const evicted = await running(world, { persistent: true, spot: true, docker_data_mib: 512 });
    await waitFor(world.call, (await create(world.call, world, full)).id, 'running');
    assert.equal((await read(world, evicted)).status, 'stopped');
  });

  for (const verb of ['start', 'resume'] as const) {
    it(`for a ${verb} of a non-spot sandbox: refused, and succeeds when repeated`, async () => {
      await using world = await crowded();
      const resting = await running(world, { persistent: true });
      const [rest, status] = verb === 'start' ? ['stop', 'stopped'] : ['pause', 'paused'];
      await world.call('POST', `/vms/${resting.id}/${rest}`);
      await waitFor(world.call, resting.id, status);
      await running(world, {});
      const evicted = await running(world, { spot: true });
      const answer = await world.call('POST', `/vms/${resting.id}/${verb}`);
      assert.equal(answer.status, 409);
      assert.match(answer.body.error, /spot sandboxes are being evicted for it: try again in a moment$/);
      await waitFor(world.call, evicted.id, 'deleted');
      assert.equal((await world.call('POST', `/vms/${resting.id}/${verb}`)).status, 200);
    });
  }

  it('for a fork: refused, and succeeds when repeated', async () => {
    await using world = await crowded();
    const source = await running(world, { persistent: true });
    const evicted = await running(world, { spot: true });
    const answer = await world.call('POST', `/vms/${source.id}/fork`);
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, /it needs 4 cores \(0 free\); spot sandboxes are being evicted for it/);
    await waitFor(world.call, evicted.id, 'deleted');
    const child = await world.call('POST', `/vms/${source.id}/fork`);
    assert.equal(child.status, 200);
    await waitFor(world.call, child.body.vm_id, 'running');
  });

  it('evicts none for another spot sandbox, and none twice for a waiting one', async () => {
    const slow = new Set<string>();
    await using world = await crowded((assignment, runner) => {
      if (assignment.desired === 'deleted') slow.add(assignment.vm_id);
      else void obedient(assignment, runner);
    });
    const one = await running(world, { spot: true });
    const two = await running(world, { spot: true });
    const third = await create(world.call, world, { ...full, spot: true });
    await new Promise((resolve) => setTimeout(resolve, 400));
    assert.equal(slow.size, 0);
    const wanted = await create(world.call, world, full);
    await until(() => slow.size > 0);
    // Several rounds come by while the host takes its time.
    await new Promise((resolve) => setTimeout(resolve, 500));
    assert.deepEqual([...slow], [two.uuid]);
    assert.deepEqual(
      [
        (await read(world, one)).status,
        (await read(world, third)).status,
        (await read(world, wanted)).status,
      ],
      ['running', 'pending', 'pending'],
    );
  });

  it('gives the capacity to the sandbox that it was freed for, and not to an earlier spot one', async () => {
    await using world = await crowded();
    await running(world, {});
    const evicted = await running(world, { spot: true });
    const early = await create(world.call, world, { ...full, spot: true });
    const wanted = await create(world.call, world, full);
    await waitFor(world.call, wanted.id, 'running');
    await waitFor(world.call, evicted.id, 'deleted');
    assert.equal((await read(world, early)).status, 'pending');
  });

  it('one that cannot be paused continues, and is left alone for a while', async () => {
    let pauses = 0;
    await using world = await crowded((assignment, runner) => {
      if (assignment.desired !== 'paused') return obedient(assignment, runner);
      pauses++;
      runner.observe(assignment, { status: 'running', error: 'no space left on device' });
      return undefined;
    });
    await running(world, {});
    const stubborn = await running(world, { persistent: true, spot: true });
    await create(world.call, world, full);
    await until(() => pauses > 0);
    await new Promise((resolve) => setTimeout(resolve, 500));
    assert.equal(pauses, 1);
    assert.equal((await read(world, stubborn)).status, 'running');
  });
});
