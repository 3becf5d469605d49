/** cpu, mem_mib, scratch_mib: guaranteed (spec, POST /vms). Guarantees are allocated once, and fairly. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspectSandboxes } from '@releap/testing/inspect';
import {
  create,
  startWorld,
  until,
  waitFor,
  host,
  hosts,
  lose,
  type Created,
  type World,
} from '@releap/testing/world';

const SPOT = { cpu: 8, mem: 4, disk: 4, tier: 'spot' } as const;

const counts = async (world: World): Promise<Record<string, number>> => {
  const sandboxes = Map.groupBy(await inspectSandboxes(world.database), ({ status }) => status);
  return Object.fromEntries(Array.from(sandboxes, ([status, { length }]) => [status, length]));
};

describe('guarantees', () => {
  it('eight dedicated sandboxes of 4 cores on a host of 4 cores: one runs, the others wait', async () => {
    for (const tier of ['spot', 'burstable'] as const) {
      await using world = await startWorld({ limits: { overcommit: { cpu: 8, mem: 4, disk: 4, tier } } });
      await world.runner({ facts: { cores: 4 } });
      for (let n = 0; n < 8; n++) await create(world.call, world, { mode: 'dedicated', cpu: 4 });
      await until(async () => (await counts(world))['running'] === 1);
      await world.control.sweep();
      assert.deepEqual(await counts(world), { running: 1, pending: 7 });
    }
  });

  it('memory of burstable sandboxes is allocated once, and spot beside it several times', async () => {
    await using world = await startWorld({ limits: { overcommit: SPOT } });
    await world.runner({ facts: { cores: 8, mem_mib: 4096 } });
    for (let n = 0; n < 6; n++) await create(world.call, world, { mem_mib: 1024 });
    await until(async () => (await counts(world))['running'] === 4);
    await world.control.sweep();
    assert.deepEqual(await counts(world), { running: 4, pending: 2 });
    await using other = await startWorld({ limits: { overcommit: SPOT } });
    await other.runner({ facts: { cores: 8, mem_mib: 4096 } });
    for (let n = 0; n < 20; n++) await create(other.call, other, { mem_mib: 1024, spot: true });
    await until(async () => (await counts(other))['running'] === 16);
    // Four spot sandboxes take one gibibyte: they go, and no more than that.
    const wanted = await create(other.call, other, { mem_mib: 1024 });
    await waitFor(other.call, wanted.id, 'running');
    const [only] = await hosts(other);
    assert.ok(only !== undefined && only.used.mem_mib <= only.allocatable.mem_mib);
    assert.equal(only.allocatable.mem_mib, 4096);
  });

  it('memory that a host holds for forks is not allocated again, but for what it would release', async () => {
    await using world = await startWorld({ limits: { overcommit: SPOT } });
    const runner = await world.runner({ facts: { cores: 8, mem_mib: 4096 } });
    runner.heldMemory = { mem_mib: 2048, reclaimable_mib: 1024 };
    runner.heartbeat(true);
    await until(async () => (await hosts(world))[0]?.held_memory.mem_mib === 2048);
    for (let n = 0; n < 4; n++) await create(world.call, world, { mem_mib: 1024 });
    await until(async () => (await counts(world))['running'] === 3);
    await world.control.sweep();
    assert.deepEqual(await counts(world), { running: 3, pending: 1 });
    const [used] = await hosts(world);
    assert.equal(used?.used.mem_mib, 4096);
    assert.deepEqual(used.held_memory, { mem_mib: 2048, reclaimable_mib: 1024 });
    runner.heldMemory = { mem_mib: 1024, reclaimable_mib: 1024 };
    runner.heartbeat(true);
    await until(async () => (await counts(world))['running'] === 4);
  });

  it('disk that others have written to is not allocated: a sandbox waits until enough is free', async () => {
    await using world = await startWorld({ limits: { overcommit: SPOT } });
    const runner = await world.runner({ facts: { cores: 8, disk_mib: 100_000 } });
    const [unknown] = await hosts(world);
    assert.equal(unknown?.free_disk_mib, null, 'an older runner says nothing');
    runner.freeDiskMib = 1_000;
    runner.heartbeat(true);
    await until(async () => (await hosts(world))[0]?.free_disk_mib === 1_000);
    await create(world.call, world, { scratch_mib: 1_000 });
    await until(async () => (await counts(world))['running'] === 1);
    await create(world.call, world, { scratch_mib: 1_001 });
    await world.control.sweep();
    assert.deepEqual(await counts(world), { running: 1, pending: 1 });
    assert.equal((await hosts(world))[0]?.used.disk_mib, 99_000);
    runner.freeDiskMib = 1_001;
    runner.heartbeat(true);
    await until(async () => (await counts(world))['running'] === 2);
    // Thin disks may have written less than they were promised.
    runner.freeDiskMib = 200_000;
    runner.heartbeat(true);
    await until(async () => (await hosts(world))[0]?.used.disk_mib === 2_001);
  });

  it('the single-machine setting overcommits burstable sandboxes too', async () => {
    const overcommit = { cpu: 8, mem: 4, disk: 4, tier: 'burstable' } as const;
    await using world = await startWorld({ limits: { overcommit } });
    await world.runner({ facts: { cores: 2, mem_mib: 4096 } });
    for (let n = 0; n < 12; n++) await create(world.call, world, { mem_mib: 1024 });
    await until(async () => (await counts(world))['running'] === 12);
  });

  it('the default of the all-in-one server runs 32 dedicated sandboxes of a core each on 2 cores, and the next one waits', async () => {
    await using world = await startWorld({
      limits: { overcommit: { cpu: 16, mem: 4, disk: 4, tier: 'all' } },
    });
    await world.runner({ facts: { cores: 2, mem_mib: 8192 } });
    for (let n = 0; n < 33; n++)
      await create(world.call, world, { mode: 'dedicated', cpu: 1, mem_mib: 1024 });
    await until(async () => (await counts(world))['running'] === 32);
    await world.control.sweep();
    assert.deepEqual(await counts(world), { running: 32, pending: 1 });
    // What the host counts as used is what was allocated.
    assert.equal((await hosts(world))[0]?.used.cpu, 2);
  });
});

describe('a host whose capacity a start takes while a round places on it', () => {
  it('is not given away twice: the sandbox goes to another host at once', async () => {
    await using world = await startWorld({ limits: { overcommit: SPOT } });
    const { pool } = world.database;
    await world.runner({ facts: { cores: 8 } });
    const stopped = await create(world.call, world, { mode: 'dedicated', cpu: 8, persistent: true });
    await waitFor(world.call, stopped.id, 'running');
    await world.call('POST', `/vms/${stopped.id}/stop`);
    await waitFor(world.call, stopped.id, 'stopped');
    // The other one has less left after the placement.
    const other = await world.runner({ facts: { cores: 5 } });
    await until(async () => (await host(world, other.id))?.ready === true);
    // The start holds the quotas of its organization, too.
    const stranger = await world.stranger();
    const starting = await pool.connect();
    let vm: Created;
    try {
      await starting.query('begin');
      await starting.query(`update sandboxes set status = 'booting', desired = 'running' where id = $1`, [
        stopped.uuid,
      ]);
      vm = await create(stranger, world, { mode: 'dedicated', cpu: 4 });
      await until(async () => {
        const { rowCount } = await pool.query(
          `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%update sandboxes s%'`,
        );
        return rowCount === 1;
      });
      await starting.query('commit');
    } finally {
      starting.release();
    }
    assert.equal((await waitFor(stranger, vm.id, 'running')).runner_id, other.id);
  });
});

describe('a request that only some host fits', () => {
  it('waits for that host up to its deadline when it is lost, and runs when it returns', async () => {
    await using world = await startWorld();
    await world.runner({ facts: { cores: 2 } });
    const large = await world.runner({ facts: { cores: 16 } });
    await lose(world, large);
    const vm = await create(world.call, world, { mode: 'dedicated', cpu: 12 });
    await world.control.sweep();
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.status, 'pending');
    await large.connect();
    await waitFor(world.call, vm.id, 'running');
  });

  it('goes to the member of a global region that has it', async () => {
    await using world = await startWorld();
    await world.database.pool.query(`insert into global_regions (id, name) values ('globe', 'Globe')`);
    await world.database.pool.query(`update regions set global_region_id = 'globe'`);
    await world.database.pool.query(
      `insert into regions (id, name, global_region_id) values ('there', 'There', 'globe')`,
    );
    await world.runner({ facts: { cores: 64 } });
    await world.runner({ region: 'there', facts: { cores: 2, gpus: 1 } });
    const vm = await create(world.call, world, { region: 'globe', gpu_host: 1 });
    assert.equal((await waitFor(world.call, vm.id, 'running')).region, 'there');
  });
});

describe('the queue', () => {
  it('holds the place of a large request: a host drains for it although small ones keep coming', async () => {
    await using world = await startWorld({ limits: { reserveAfterMs: 500 } });
    await world.runner({ facts: { cores: 4 } });
    const small = { mode: 'dedicated', cpu: 1 };
    const running: string[] = [];
    for (let n = 0; n < 4; n++) running.push((await create(world.call, world, small)).id);
    for (const id of running) await waitFor(world.call, id, 'running');
    const large = await create(world.call, world, { mode: 'dedicated', cpu: 4 });
    await until(async () => {
      await world.control.sweep();
      const { rowCount } = await world.database.pool.query('select 1 from scheduler_reservations');
      return rowCount === 1;
    });
    const late: string[] = [];
    for (const id of running) {
      late.push((await create(world.call, world, small)).id);
      await world.call('DELETE', `/vms/${id}`);
      await waitFor(world.call, id, 'deleted');
    }
    await waitFor(world.call, large.id, 'running');
    for (const id of late) assert.equal((await world.call('GET', `/vms/${id}`)).body.status, 'pending');
  });

  it('POST /vms 429: one organization has its fair share of the create queue, another still finds places', async () => {
    await using world = await startWorld({ limits: { createQueue: 8 } });
    for (let n = 0; n < 4; n++) await create(world.call, world);
    const answer = await world.call('POST', '/vms', { image: 'busybox' });
    assert.equal(answer.status, 429, answer.text);
    assert.match(
      answer.body.error,
      /^4 sandboxes of this organization are already waiting .* fair share of the 8 /,
    );
    assert.equal(answer.body.retry_after_secs, 2);
    assert.equal(answer.headers.get('retry-after'), '2');
    const other = await world.stranger();
    await world.database.pool.query(
      `with org as (insert into organizations (id, name) values (gen_random_uuid(), 'other') returning id)
       update projects set org_id = org.id from org where projects.id = $1`,
      [other.projectId],
    );
    assert.equal((await other('POST', '/vms', { image: 'busybox' })).status, 200);
  });
});
