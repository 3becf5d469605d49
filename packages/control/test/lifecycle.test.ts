/** Stop, start, pause and resume as clients see them: a test for every row of the specification. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { SANDBOX_STATUSES, SandboxLifecycleResponse, type SandboxStatus } from '@releap/contract';
import { Compile } from 'typebox/compile';
import { CONTROL_LIMITS } from '../src/limits.ts';
import { leaseExpiry } from '../src/compute/sandboxes/leases.ts';
import { Stage, VERBS } from './support/lifecycle.ts';
import { create, startWorld, until, waitFor, refusalOf } from '@releap/testing/world';

const world = await startWorld({ limits: { leaseGraceMs: 0 } });
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });

const read = async (id: string) => (await world.call('GET', `/vms/${id}`)).body;
/** All statuses but these, and but `pending`: the scheduler may place a pending one at any time. */
const others = (...allowed: SandboxStatus[]): SandboxStatus[] =>
  SANDBOX_STATUSES.filter((status) => status !== 'pending' && !allowed.includes(status));

describe('POST /vms/:id/stop', () => {
  it('running · persistent → stopping, then stopped: its addresses and cores are given back, its disk stays', async () => {
    const vm = await stage.running({ ports: [{ vm_port: 80 }] });
    const answer = await stage.do(vm, 'stop');
    assert.deepEqual([answer.status, answer.body], [200, { vm_id: vm.id, status: 'stopping' }]);
    assert.ok(Compile(SandboxLifecycleResponse).Check(answer.body));
    const assignment = await stage.runner.assigned(vm.uuid, (one) => one.desired === 'stopped');
    assert.equal(assignment.start_from, undefined);
    const wait = world.call('GET', `/vms/${vm.id}?wait_exact=stopped&timeout_ms=60000`);
    await stage.runner.observed(assignment, { status: 'stopping' });
    await stage.runner.observed(assignment, { status: 'stopped' });
    const record = (await wait).body;
    assert.deepEqual(
      [record.status, record.vm_ip, record.host_ip, record.port_map, record.error],
      ['stopped', undefined, undefined, [], null],
    );
    assert.equal((await stage.row(vm)).assigned_to_runner, true);
  });

  it('stopping or stopped → unchanged, success', async () => {
    const vm = await stage.running();
    await stage.ok(vm, 'stop');
    const { generation } = await stage.row(vm);
    assert.deepEqual((await stage.do(vm, 'stop')).body, { vm_id: vm.id, status: 'stopping' });
    await stage.report(vm, 'stopped');
    assert.deepEqual((await stage.do(vm, 'stop')).body, { vm_id: vm.id, status: 'stopped' });
    assert.equal((await stage.row(vm)).generation, generation);
  });

  for (const status of ['assigned', 'building', 'booting'] as const) {
    it(`${status} → stopping, and stopped though it never ran`, async () => {
      const vm = await stage.running();
      await stage.force(vm, status, `manifest_name = null`);
      await stage.ok(vm, 'stop');
      await stage.report(vm, 'stopped');
      assert.equal((await stage.row(vm)).status, 'stopped');
      await stage.refused(vm, 'start', /it has no bootable file system/);
    });
  }

  it('409: not in a live stoppable state (running, booting, assigned, building)', async () => {
    const vm = await stage.running();
    for (const status of others('running', 'booting', 'assigned', 'building', 'stopping', 'stopped')) {
      await stage.force(vm, status);
      await stage.refused(
        vm,
        'stop',
        new RegExp(`cannot be stopped: it is ${status}, and must be running, assigned, building or booting$`),
      );
    }
  });

  it('ends a resume that is under way, and throws its memory away', async () => {
    const vm = await stage.paused();
    await stage.ok(vm, 'resume');
    await stage.ok(vm, 'stop');
    await stage.report(vm, 'stopped');
    assert.deepEqual((({ status, has_memory }) => ({ status, has_memory }))(await stage.row(vm)), {
      status: 'stopped',
      has_memory: false,
    });
  });
});

describe('POST /vms/:id/start', () => {
  it('stopped · persistent, bootable manifest → booting, then running: fresh addresses, its environment restored', async () => {
    const vm = await stage.stopped({ env: { A: '1' }, ports: [{ vm_port: 80 }] });
    const answer = await stage.do(vm, 'start');
    assert.deepEqual([answer.status, answer.body], [200, { vm_id: vm.id, status: 'booting' }]);
    const assignment = await stage.runner.assigned(vm.uuid, (one) => one.desired === 'running');
    assert.equal(assignment.start_from, 'disk');
    assert.deepEqual(assignment.spec.env, { A: '1' });
    assert.equal((await read(vm.id)).vm_ip, undefined);
    const wait = world.call('GET', `/vms/${vm.id}?wait=running&timeout_ms=60000`);
    await stage.runner.observed(assignment, { status: 'booting' });
    await stage.runner.observed(assignment, {
      status: 'running',
      vm_ip: '100.64.7.7',
      host_ip: '10.0.0.7',
      port_map: [{ vm_port: 80, proto: 'tcp', host_port: 30_007 }],
    });
    const record = (await wait).body;
    assert.deepEqual(
      [record.status, record.vm_ip, record.host_ip, record.port_map[0].host_port],
      ['running', '100.64.7.7', '10.0.0.7', 30_007],
    );
  });

  it('paused · persistent → booting, then running: its memory is discarded', async () => {
    const vm = await stage.paused();
    assert.equal((await stage.row(vm)).has_memory, true);
    const assignment = await stage.ok(vm, 'start');
    assert.deepEqual([assignment.desired, assignment.start_from], ['running', 'disk']);
    assert.equal((await stage.row(vm)).has_memory, false);
    await stage.report(vm, 'running');
    assert.equal((await read(vm.id)).status, 'running');
  });

  it('boots the image that it ran before, even if its tag means another one by now', async () => {
    const vm = await stage.running({ image: 'registry.example/app:1' });
    const { digest } = (await stage.ok(vm, 'stop')).spec.root as { digest?: string };
    assert.equal(digest, (await read(vm.id)).manifest_name);
    assert.match(digest ?? '', /^sha256:/);
  });

  it('may make the root image again on the way', async () => {
    const vm = await stage.stopped();
    await stage.ok(vm, 'start');
    await stage.report(vm, 'building');
    assert.equal((await read(vm.id)).status, 'building');
    await stage.refused(vm, 'start', /it is starting already \(building\)/);
    await stage.report(vm, 'booting');
    await stage.report(vm, 'running');
    assert.equal((await read(vm.id)).status, 'running');
  });

  it('409: not stopped or paused', async () => {
    const vm = await stage.running();
    for (const status of others('stopped', 'paused', 'assigned', 'building', 'booting')) {
      await stage.force(vm, status);
      await stage.refused(
        vm,
        'start',
        new RegExp(`cannot be started: it is ${status}, and must be stopped or paused$`),
      );
    }
  });

  it('409: no bootable filesystem manifest', async () => {
    const vm = await stage.stopped();
    await stage.force(vm, 'stopped', 'manifest_name = null');
    await stage.refused(vm, 'start', /cannot be started: it has no bootable file system$/);
  });

  it('409: start already in progress', async () => {
    const vm = await stage.stopped();
    await stage.ok(vm, 'start');
    await stage.refused(vm, 'start', /it is starting already \(booting\), and must be stopped or paused$/);
  });
});

describe('POST /vms/:id/pause', () => {
  it('running · persistent, no volumes, no Docker data device → pausing, then paused', async () => {
    const vm = await stage.running();
    const answer = await stage.do(vm, 'pause');
    assert.deepEqual([answer.status, answer.body], [200, { vm_id: vm.id, status: 'pausing' }]);
    const assignment = await stage.runner.assigned(vm.uuid, (one) => one.desired === 'paused');
    const wait = world.call('GET', `/vms/${vm.id}?wait_exact=paused&timeout_ms=60000`);
    await stage.runner.observed(assignment, { status: 'pausing' });
    await stage.runner.observed(assignment, { status: 'paused' });
    assert.deepEqual([(await wait).body.status, (await wait).body.vm_ip], ['paused', undefined]);
  });

  it('pausing or paused → unchanged, success', async () => {
    const vm = await stage.running();
    await stage.ok(vm, 'pause');
    const { generation } = await stage.row(vm);
    assert.deepEqual((await stage.do(vm, 'pause')).body, { vm_id: vm.id, status: 'pausing' });
    await stage.report(vm, 'paused');
    assert.deepEqual((await stage.do(vm, 'pause')).body, { vm_id: vm.id, status: 'paused' });
    assert.equal((await stage.row(vm)).generation, generation);
  });

  it('409: attached volumes', async () => {
    const vm = await stage.running();
    await stage.force(vm, 'running', 'volume_count = 1');
    await stage.refused(vm, 'pause', /cannot be paused: it has volumes attached$/);
  });

  it('409: Docker data device', async () => {
    const vm = await stage.running({ docker_data_mib: 512 });
    await stage.refused(vm, 'pause', /cannot be paused: it has a Docker data device$/);
  });

  it('409: GPUs', async () => {
    const vm = await stage.running();
    await stage.force(vm, 'running', 'gpu_host = 1');
    await stage.refused(vm, 'pause', /cannot be paused: it has GPUs$/);
  });

  it('409: not running', async () => {
    const vm = await stage.running();
    for (const status of others('running', 'pausing', 'paused')) {
      await stage.force(vm, status);
      await stage.refused(vm, 'pause', new RegExp(`cannot be paused: it is ${status}, and must be running$`));
    }
  });
});

describe('POST /vms/:id/resume', () => {
  it('paused · persistent, memory artifact exists → running: fresh addresses', async () => {
    const vm = await stage.paused();
    const answer = await stage.do(vm, 'resume');
    assert.deepEqual([answer.status, answer.body], [200, { vm_id: vm.id, status: 'booting' }]);
    const assignment = await stage.runner.assigned(vm.uuid, (one) => one.desired === 'running');
    assert.equal(assignment.start_from, 'memory');
    const wait = world.call('GET', `/vms/${vm.id}?wait=running&timeout_ms=60000`);
    await stage.runner.observed(assignment, { status: 'running', vm_ip: '100.64.8.8', host_ip: '10.0.0.8' });
    assert.deepEqual([(await wait).body.status, (await wait).body.vm_ip], ['running', '100.64.8.8']);
    const row = await stage.row(vm);
    assert.deepEqual([row.has_memory, row.start_from], [false, 'disk'], 'it is never resumed from it again');
  });

  it('409: not paused', async () => {
    const vm = await stage.running();
    for (const status of others('paused', 'assigned', 'building', 'booting')) {
      await stage.force(vm, status);
      await stage.refused(
        vm,
        'resume',
        new RegExp(`cannot be resumed: it is ${status}, and must be paused$`),
      );
    }
  });

  it('409: no memory artifact (use start)', async () => {
    const vm = await stage.paused();
    await stage.force(vm, 'paused', 'has_memory = false');
    await stage.refused(vm, 'resume', /cannot be resumed: it has no saved memory \(use start\)$/);
    await stage.ok(vm, 'start');
  });

  it('409: resume already in progress', async () => {
    const vm = await stage.paused();
    await stage.ok(vm, 'resume');
    await stage.refused(vm, 'resume', /it is starting already \(booting\), and must be paused$/);
    await stage.refused(vm, 'start', /it is starting already \(booting\)/);
  });
});

describe('every lifecycle call', () => {
  for (const verb of VERBS) {
    it(`${verb} 404: unknown id, malformed id, or other project's sandbox`, async () => {
      const vm = await stage.stopped();
      const stranger = await world.stranger();
      for (const id of [randomUUID(), `here-${'a'.repeat(26)}`, 'no-id!', vm.id, vm.uuid]) {
        const answer = await stranger('POST', `/vms/${encodeURIComponent(id)}/${verb}`);
        assert.deepEqual(
          [answer.status, refusalOf(answer)],
          [
            404,
            { error: `sandbox ${JSON.stringify(id)} not found`, code: 'sandbox_not_found', retryable: false },
          ],
        );
      }
      assert.equal((await stage.row(vm)).status, 'stopped');
    });

    it(`${verb} 409: not persistent`, async () => {
      const vm = await create(world.call, world);
      await waitFor(world.call, vm.id, 'running');
      for (const status of ['running', 'stopped', 'paused', 'failed'] as const) {
        await stage.force(vm, status);
        await stage.refused(vm, verb, /: it is not persistent \(create it with persistent: true\)$/);
      }
    });

    it(`${verb} 401: no API key`, async () => {
      const response = await fetch(`${world.url}/vms/${randomUUID()}/${verb}`, { method: 'POST' });
      assert.equal(response.status, 401);
    });
  }

  it('takes the bare UUID, and a body that it does not need', async () => {
    const vm = await stage.running();
    const answer = await world.call('POST', `/vms/${vm.uuid}/stop`, { force: true });
    assert.deepEqual([answer.status, answer.body.vm_id], [200, vm.id]);
  });

  it('has one winner of different calls at the same time, and the others get 409 or find it done', async () => {
    for (let round = 0; round < 8; round++) {
      const vm = await stage.running();
      const answers = await Promise.all(
        (['stop', 'pause', 'pause', 'stop', 'pause', 'stop'] as const).map((verb) => stage.do(vm, verb)),
      );
      const { status, generation } = await stage.row(vm);
      assert.ok(status === 'stopping' || status === 'pausing');
      assert.equal(generation, 2, 'only one of them was taken');
      for (const answer of answers) {
        if (answer.status === 200) assert.equal(answer.body.status, status);
        else assert.match(answer.body.error, new RegExp(`it is ${status}, and must be`));
      }
    }
    for (const begin of ['stopped', 'paused'] as const) {
      const vm = await stage[begin]();
      const verbs = begin === 'paused' ? (['start', 'resume'] as const) : (['start'] as const);
      const answers = await Promise.all(
        Array.from({ length: 6 }, (_, index) => stage.do(vm, verbs[index % verbs.length] ?? 'start')),
      );
      assert.deepEqual(
        answers.map((answer) => answer.status).sort((a, b) => a - b),
        [200, 409, 409, 409, 409, 409],
        'starts are not idempotent',
      );
    }
  });

  for (const status of SANDBOX_STATUSES) {
    it(`DELETE works from ${status}, and ends in deleted`, async () => {
      const vm = await stage.running();
      await stage.force(vm, status, status === 'pending' ? 'runner_id = null, held = false' : '');
      const answer = await world.call('DELETE', `/vms/${vm.id}`);
      assert.deepEqual([answer.status, answer.body], [200, { vm_id: vm.id, status: 'deleting' }]);
      if ((await stage.row(vm)).status === 'deleting') await stage.timeOver(vm);
      await until(async () => (await stage.row(vm)).status === 'deleted');
    });
  }
});

describe('PUT /vms/:id/lease', () => {
  const lease = (id: string, seconds: unknown) => world.call('PUT', `/vms/${id}/lease`, { lease_s: seconds });
  const expire = (uuid: string) =>
    world.database.pool.query(
      `update sandbox_leases set expires_at = now() - interval '1 second' where sandbox_id = $1`,
      [uuid],
    );
  const leases = async (uuid: string) =>
    (await world.database.pool.query('select 1 from sandbox_leases where sandbox_id = $1', [uuid])).rowCount;

  it('a sandbox whose lease expires is deleted, with the reason; one that is renewed or ended stays', async () => {
    const [left, ended, plain] = await Promise.all([
      stage.running({ lease_s: 3600 }),
      stage.running({ lease_s: 3600 }),
      stage.running(),
    ]);
    const renewed = await lease(left.id, 600);
    assert.equal(renewed.status, 200, renewed.text);
    assert.equal(renewed.body.vm_id, left.id);
    assert.ok(new Date(renewed.body.lease_expires_at) < new Date(Date.now() + 3_000_000), renewed.text);
    assert.equal((await read(left.id)).lease_expires_at, renewed.body.lease_expires_at);
    assert.ok((await read(ended.id)).lease_expires_at);
    assert.deepEqual((await lease(ended.id, null)).body, { vm_id: ended.id, lease_expires_at: null });
    assert.deepEqual(
      [(await read(ended.id)).lease_expires_at, (await read(plain.id)).lease_expires_at],
      [undefined, undefined],
    );
    assert.deepEqual(
      [await leases(left.uuid), await leases(ended.uuid), await leases(plain.uuid)],
      [1, 0, 0],
    );
    await expire(left.uuid);
    const gone = await world.call('GET', `/vms/${left.id}?wait_exact=deleting&timeout_ms=60000`);
    assert.deepEqual(
      [gone.body.status, gone.body.error, gone.body.lease_expires_at],
      ['deleting', 'deleted because its lease expired: its client did not renew it', undefined],
    );
    await until(async () => (await leases(left.uuid)) === 0);
    // It is given to one that had none, too.
    assert.equal((await lease(plain.id, 30)).status, 200);
    await expire(plain.uuid);
    await waitFor(world.call, plain.id, 'deleting');
    assert.equal((await read(ended.id)).status, 'running');
  });

  it('a renewal that is in progress when the lease is found expired saves the sandbox', async () => {
    const vm = await stage.running({ lease_s: 3600 });
    const client = await world.database.pool.connect();
    try {
      await client.query('begin');
      // The lease of the row that others see has expired.
      await client.query('select 1 from sandboxes where id = $1 for share', [vm.uuid]);
      await expire(vm.uuid);
      await client.query(
        `update sandbox_leases set expires_at = now() + interval '1 hour' where sandbox_id = $1`,
        [vm.uuid],
      );
      // Nobody else sees the renewal yet.
      await world.control.runTask('sandbox-leases');
      await client.query('commit');
    } finally {
      client.release();
    }
    await world.control.runTask('sandbox-leases');
    assert.equal((await read(vm.id)).status, 'running');
  });

  it('a renewal never answers 200 for a sandbox whose deletion is about to be committed', async () => {
    const vm = await stage.running({ lease_s: 3600 });
    const client = await world.database.pool.connect();
    let renewal: ReturnType<typeof lease>;
    try {
      await client.query('begin');
      await client.query(`update sandboxes set status = 'deleting' where id = $1`, [vm.uuid]);
      renewal = lease(vm.id, 600);
      await until(
        async () =>
          (
            await world.database.pool.query(
              `select 1 from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock' and query like '%sandbox_leases%'`,
            )
          ).rowCount === 1,
      );
      await client.query('commit');
    } finally {
      client.release();
    }
    assert.equal((await renewal).status, 404);
  });

  it('400 for less than 30 seconds or more than a day, 404 for deleted ones and those of others', async () => {
    const vm = await stage.running();
    for (const seconds of [29, 86_401, 1.5, '60', undefined]) {
      const answer = await lease(vm.id, seconds);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, /lease_s/);
    }
    const create = await world.call('POST', '/vms', { image: 'busybox', lease_s: 0 });
    assert.deepEqual([create.status, /lease_s/.test(create.text)], [400, true]);
    const other = await world.stranger();
    assert.equal((await other('PUT', `/vms/${vm.id}/lease`, { lease_s: 30 })).status, 404);
    await world.call('DELETE', `/vms/${vm.id}`);
    assert.equal((await lease(vm.id, 30)).status, 404);
    assert.equal((await lease(randomUUID(), 30)).status, 404);
  });

  it('a new server deletes none at first, as clients could not renew theirs before', async () => {
    const { database } = world;
    let queries = 0;
    const pool = new Proxy(database.pool, { get: () => assert.fail(`query ${++queries}`) });
    const context = { database: { ...database, pool }, limits: CONTROL_LIMITS };
    await leaseExpiry(context as unknown as Parameters<typeof leaseExpiry>[0])();
  });
});
