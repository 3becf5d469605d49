/** A sandbox whose stop, start, pause or resume does not succeed, or whose host is disconnected or has no capacity. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Stage } from './support/lifecycle.ts';
import { inspectSandboxes } from '@releap/testing/inspect';
import { create, silent, startWorld, until, waitFor } from '@releap/testing/world';

const world = await startWorld();
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });

const read = async (id: string) => (await world.call('GET', `/vms/${id}`)).body;

describe('what does not succeed on the host', () => {
  it('pause: the sandbox continues to run, has the reason, and can be paused again', async () => {
    const vm = await stage.running();
    await stage.ok(vm, 'pause');
    await stage.report(vm, 'running', { error: 'no space left on the device', vm_ip: '100.64.1.1' });
    const record = await read(vm.id);
    assert.deepEqual(
      [record.status, record.error, record.vm_ip],
      ['running', 'no space left on the device', '100.64.1.1'],
    );
    const back = await stage.runner.assigned(vm.uuid, (one) => one.generation === 3);
    assert.deepEqual([back.desired, back.start_from], ['running', 'disk']);
    await stage.ok(vm, 'pause');
    assert.equal((await read(vm.id)).error, null);
    await stage.report(vm, 'paused');
    assert.equal((await read(vm.id)).status, 'paused');
  });

  it('resume: the sandbox stays paused with its memory, says why, and can be resumed again', async () => {
    const vm = await stage.paused();
    await stage.ok(vm, 'resume');
    await stage.report(vm, 'booting');
    await stage.report(vm, 'paused', { error: 'no network slot is free' });
    const record = await read(vm.id);
    assert.deepEqual([record.status, record.error], ['paused', 'no network slot is free']);
    assert.equal(
      (await stage.runner.assigned(vm.uuid, (one) => one.desired === 'paused')).start_from,
      undefined,
    );
    assert.equal((await stage.ok(vm, 'resume')).start_from, 'memory');
    await stage.report(vm, 'running');
    assert.deepEqual([(await read(vm.id)).status, (await read(vm.id)).error], ['running', null]);
  });

  it('resume of memory that cannot be used: the sandbox stays paused, and can only be started', async () => {
    const vm = await stage.paused();
    await stage.ok(vm, 'resume');
    await stage.report(vm, 'paused', { memory: false, error: 'made by another version of the VMM' });
    assert.equal((await read(vm.id)).error, 'made by another version of the VMM');
    await stage.refused(vm, 'resume', /it has no saved memory \(use start\)/);
    await stage.ok(vm, 'start');
    await stage.report(vm, 'running');
    assert.equal((await read(vm.id)).status, 'running');
  });

  it('resume of memory that the host cannot use as it is now: refused with the reason, and possible when that is over', async () => {
    const vm = await stage.paused();
    const memory_blocked = 'accelerator kvm, here tcg';
    await stage.ok(vm, 'resume');
    await stage.report(vm, 'paused', { memory_blocked, error: memory_blocked });
    assert.equal((await read(vm.id)).error, memory_blocked);
    const { has_memory, start_from } = await stage.row(vm);
    assert.deepEqual([has_memory, start_from], [true, 'disk']);
    await stage.refused(vm, 'resume', /accelerator kvm, here tcg/);
    await stage.report(vm, 'paused');
    assert.equal((await read(vm.id)).error, null);
    assert.equal((await stage.ok(vm, 'resume')).start_from, 'memory');
    await stage.report(vm, 'running');
  });

  it('paused on a host that starts again as another one: blocked before a resume is asked for; a start discards the memory', async () => {
    const vm = await stage.paused();
    const memory_blocked = 'VMM 7.2, here 10.0';
    await stage.report(vm, 'paused', { memory_blocked, error: memory_blocked });
    await stage.refused(vm, 'resume', /VMM 7\.2, here 10\.0/);
    await stage.ok(vm, 'start');
    await stage.report(vm, 'running');
    const row = await stage.row(vm);
    assert.deepEqual([row.status, row.has_memory, row.memory_blocked], ['running', false, null]);
  });

  it('pause that loses the memory and keeps the disk: paused, and can only be started', async () => {
    const vm = await stage.running();
    await stage.ok(vm, 'pause');
    await stage.report(vm, 'paused', { memory: false, error: 'the VMM died of SIGKILL' });
    await stage.refused(vm, 'resume', /it has no saved memory \(use start\)/);
    await stage.ok(vm, 'start');
  });

  it('start of a disk: the sandbox stays stopped, says why, and can be started again', async () => {
    const vm = await stage.stopped();
    await stage.ok(vm, 'start');
    const wait = world.call('GET', `/vms/${vm.id}?wait=running&timeout_ms=60000`);
    await stage.report(vm, 'stopped', { error: 'the registry does not answer' });
    assert.deepEqual(
      [(await wait).body.status, (await wait).body.error],
      ['stopped', 'the registry does not answer'],
    );
    await stage.ok(vm, 'start');
    assert.equal((await read(vm.id)).error, null);
  });

  for (const during of ['running', 'stopping', 'pausing', 'booting'] as const) {
    it(`a VMM that dies while ${during}: failed, with the reason; its disk is kept until it is deleted`, async () => {
      const vm = during === 'booting' ? await stage.stopped() : await stage.running();
      if (during === 'stopping') await stage.ok(vm, 'stop');
      if (during === 'pausing') await stage.ok(vm, 'pause');
      if (during === 'booting') await stage.ok(vm, 'start');
      await stage.report(vm, 'failed', { error: 'the VMM died of SIGKILL' });
      const record = await read(vm.id);
      assert.deepEqual([record.status, record.error], ['failed', 'the VMM died of SIGKILL']);
      const { generation } = await stage.row(vm);
      const kept = await stage.runner.assigned(vm.uuid, (one) => one.generation === generation);
      assert.equal(kept.desired, 'stopped');
      await stage.report(vm, 'stopped');
      assert.equal((await read(vm.id)).status, 'failed');
      await world.call('DELETE', `/vms/${vm.id}`);
      assert.equal((await read(vm.id)).status, 'deleted');
      await stage.runner.assigned(vm.uuid, (one) => one.desired === 'deleted');
    });
  }

  it('a guest that powers itself off: stopped, and can be started', async () => {
    const vm = await stage.running();
    await stage.report(vm, 'stopped');
    assert.equal((await stage.row(vm)).desired, 'stopped');
    await stage.ok(vm, 'start');
    await stage.report(vm, 'running');
    assert.equal((await read(vm.id)).status, 'running');
  });

  it('a guest that powers itself off while it is being paused: stopped', async () => {
    const vm = await stage.running();
    await stage.ok(vm, 'pause');
    await stage.report(vm, 'stopped');
    const { status, desired } = await stage.row(vm);
    assert.deepEqual([status, desired], ['stopped', 'stopped']);
  });

  it('ignores late, repeated and foreign observations', async () => {
    const vm = await stage.running();
    const old = await stage.row(vm);
    const pausing = await stage.ok(vm, 'pause');
    for (const status of ['running', 'stopped', 'failed', 'deleted'] as const)
      await stage.runner.observed({ vm_id: vm.uuid, generation: old.generation }, { status });
    assert.equal((await stage.row(vm)).status, 'pausing');
    for (let i = 0; i < 3; i++) await stage.runner.observed(pausing, { status: 'paused' });
    const resuming = await stage.ok(vm, 'resume');
    await stage.runner.observed(pausing, { status: 'paused', memory: false });
    assert.deepEqual([(await stage.row(vm)).status, (await stage.row(vm)).has_memory], ['booting', true]);
    await stage.runner.observed(resuming, { status: 'running' });
    await stage.runner.observed(resuming, { status: 'booting' });
    await stage.runner.observed(resuming, { status: 'paused' });
    assert.equal((await stage.row(vm)).status, 'running');
  });
});

describe('deadlines', () => {
  it('stopping, pausing: lost, until its host reports its status', async () => {
    for (const [verb, status] of [
      ['stop', 'stopped'],
      ['pause', 'paused'],
    ] as const) {
      const vm = await stage.running();
      const asked = await stage.ok(vm, verb);
      await stage.timeOver(vm);
      const record = await read(vm.id);
      assert.equal(record.status, 'lost');
      assert.match(record.error, /^it was (stopping|pausing) for longer than 120 s$/);
      const again = await stage.runner.assigned(vm.uuid, (one) => one.generation > asked.generation);
      assert.equal(again.desired, status, 'it is asked again');
      await stage.report(vm, status);
      assert.deepEqual([(await read(vm.id)).status, (await read(vm.id)).error], [status, null]);
    }
  });

  it('pausing, and the host reports a failure at last: running', async () => {
    const vm = await stage.running();
    await stage.ok(vm, 'pause');
    await stage.timeOver(vm);
    await stage.report(vm, 'running', { error: 'no space left' });
    const { status, desired } = await stage.row(vm);
    assert.deepEqual([status, desired], ['running', 'running']);
  });

  it('booting of a resume: paused again, with its memory', async () => {
    const vm = await stage.paused();
    await stage.ok(vm, 'resume');
    await stage.timeOver(vm);
    const row = await stage.row(vm);
    assert.deepEqual([row.status, row.desired, row.has_memory], ['paused', 'paused', true]);
    assert.match(row.error ?? '', /it was booting for longer than 180 s/);
    assert.equal((await stage.ok(vm, 'resume')).start_from, 'memory');
  });

  it('booting of a resume that had used its memory up: paused, and can only be started', async () => {
    const vm = await stage.paused();
    await stage.ok(vm, 'resume');
    await stage.timeOver(vm);
    await stage.report(vm, 'paused', { memory: false });
    await stage.report(vm, 'paused');
    await stage.refused(vm, 'resume', /it has no saved memory \(use start\)/);
    await stage.ok(vm, 'start');
  });

  it('booting of a start: stopped again', async () => {
    const vm = await stage.stopped();
    await stage.ok(vm, 'start');
    await stage.timeOver(vm);
    const row = await stage.row(vm);
    assert.deepEqual([row.status, row.desired], ['stopped', 'stopped']);
    assert.match(row.error ?? '', /it was booting for longer than 180 s/);
    await stage.ok(vm, 'start');
  });

  it('booting of a create: failed, and its job with it', async () => {
    await using mine = await startWorld();
    const runner = await mine.runner({ script: silent });
    const vm = await create(mine.call, mine, { persistent: true });
    await runner.observed(await runner.assigned(vm.uuid), { status: 'booting' });
    await mine.database.pool.query(`update sandboxes set deadline_at = now()`);
    await waitFor(mine.call, vm.id, 'failed');
    assert.equal((await mine.call('GET', `/jobs/${vm.jobId}`)).body.status, 'failed');
  });
});

describe('a host without capacity', () => {
  it('start and resume 409: says what is missing, changes nothing; and succeeds once there is capacity', async () => {
    await using mine = await startWorld({
      limits: { overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' } },
    });
    const tight = await Stage.on(mine, { facts: { cores: 4, mem_mib: 4096 } });
    const sleeper = await tight.stopped({ cpu: 2, mem_mib: 1024 });
    const dozer = await tight.paused({ cpu: 2, mem_mib: 1024 });
    // A paused sandbox occupies no cores: others may have them.
    const busy = await tight.running({ cpu: 3, mem_mib: 1024 });
    const message = /lacks the capacity for it now: it needs 2 cores \(1 free\)$/;
    await tight.refused(sleeper, 'start', message);
    await tight.refused(dozer, 'resume', message);
    await tight.refused(dozer, 'start', message);
    assert.equal((await tight.row(dozer)).has_memory, true, 'a refused start has not thrown it away');
    await tight.ok(busy, 'stop');
    await tight.refused(sleeper, 'start', /needs 2 cores/);
    await tight.report(busy, 'stopped');
    await tight.ok(sleeper, 'start');
    await tight.ok(dozer, 'resume');
    await tight.refused(busy, 'start', /it needs 3 cores \(0 free\)$/);
  });

  it('gives the last capacity to one of several concurrent starts, and never to a create as well', async () => {
    await using mine = await startWorld({
      limits: { overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' } },
    });
    const tight = await Stage.on(mine, { facts: { cores: 2 } });
    const sleepers = [];
    for (let i = 0; i < 4; i++) sleepers.push(await tight.stopped({ cpu: 1.5 }));
    const [answers] = await Promise.all([
      Promise.all(sleepers.map((vm) => tight.do(vm, 'start'))),
      ...Array.from({ length: 4 }, () => create(mine.call, mine, { cpu: 1.5 })),
    ]);
    await until(async () => {
      const rows = await inspectSandboxes(mine.database);
      const placed = rows.filter(({ status }) => /^(assigned|building|booting|running)$/.test(status));
      return placed.reduce((sum, { cpu }) => sum + cpu, 0) === 1.5;
    });
    assert.ok(answers.filter((answer) => answer.status === 200).length <= 1);
  });
});

// Each on a server of its own, that waits for seconds.
describe('a host that is silent for too long', { concurrency: true }, () => {
  it('leaves stopped and paused as they are; start and resume 409 until it is back', async () => {
    await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000 } });
    const away = await Stage.on(mine);
    const stopped = await away.stopped();
    const paused = await away.paused();
    const running = await away.running();
    away.runner.drop();
    await waitFor(mine.call, running.id, 'lost');
    const message = /its host [0-9a-f-]+, which has its disk, has not been heard from since 20/;
    await away.refused(stopped, 'start', message);
    await away.refused(paused, 'resume', message);
    await away.refused(running, 'start', /it is lost, and must be stopped or paused/);
    await away.runner.connect();
    await until(async () => (await mine.call('GET', '/healthz')).status === 200);
    assert.equal((await away.ok(paused, 'resume')).start_from, 'memory');
    await away.ok(stopped, 'start');
  });

  for (const [verb, wanted, said] of [
    ['stop', 'stopped', 'stopped'],
    ['pause', 'paused', 'paused'],
    ['pause', 'paused', 'running'],
    ['resume', 'running', 'running'],
    ['resume', 'running', 'paused'],
    ['start', 'running', 'running'],
    ['start', 'running', 'stopped'],
  ] as const) {
    it(`comes back in the middle of a ${verb} that ends ${said}`, async () => {
      await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000 } });
      const away = await Stage.on(mine);
      const vm =
        verb === 'start'
          ? await away.stopped()
          : verb === 'resume'
            ? await away.paused()
            : await away.running();
      const asked = await away.ok(vm, verb);
      away.runner.drop();
      await waitFor(mine.call, vm.id, 'lost');
      await away.runner.connect();
      const again = await away.runner.assigned(vm.uuid, (one) => one.generation > asked.generation);
      assert.deepEqual([again.desired, again.start_from], [wanted, asked.start_from]);
      await away.report(vm, said);
      const row = await away.row(vm);
      assert.deepEqual([row.status, row.desired, row.has_memory], [said, said, said === 'paused']);
    });
  }

  it('is failed when its host comes back without it, and can be deleted', async () => {
    await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000 } });
    const away = await Stage.on(mine);
    const [gone, broken] = [await away.running(), await away.running()];
    away.runner.drop();
    await waitFor(mine.call, gone.id, 'lost');
    await waitFor(mine.call, broken.id, 'lost');
    await away.runner.connect();
    await away.report(gone, 'deleted');
    await away.report(broken, 'failed', { error: 'its disk is damaged' });
    assert.deepEqual(
      [
        (await away.row(gone)).error,
        (await away.row(gone)).assigned_to_runner,
        (await away.row(broken)).error,
      ],
      ['its host no longer has it', false, 'its disk is damaged'],
    );
    for (const vm of [gone, broken]) {
      assert.equal((await away.row(vm)).status, 'failed');
      await mine.call('DELETE', `/vms/${vm.id}`);
      assert.equal((await away.row(vm)).status, 'deleted');
    }
  });
});

describe('a control server that restarts', () => {
  it('completes a stop, a pause, a start and a resume that it had acknowledged', async () => {
    await using mine = await startWorld();
    const before = await Stage.on(mine);
    const asked = [
      [await before.running(), 'stop', 'stopped'],
      [await before.running(), 'pause', 'paused'],
      [await before.stopped(), 'start', 'running'],
      [await before.paused(), 'resume', 'running'],
    ] as const;
    for (const [vm, verb] of asked) assert.equal((await before.do(vm, verb)).status, 200);
    const rows = await inspectSandboxes(mine.database);
    await mine.restart();
    before.runner.assignments.clear();
    before.left.clear();
    await before.runner.connect();
    for (const [vm, , status] of asked) await waitFor(mine.call, vm.id, status);
    for (const { id, generation } of rows)
      assert.equal(before.runner.assignments.get(id)?.generation, generation);
  });
});
