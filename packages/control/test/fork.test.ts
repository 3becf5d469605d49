/** Forks as clients and hosts see them: a test for every row of the specification. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SandboxForkResponse, SANDBOX_STATUSES } from '@releap/contract';
import { Compile } from 'typebox/compile';
import { obedientExcept, Stage } from './support/lifecycle.ts';
import {
  create,
  lose,
  silent,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Created,
} from '@releap/testing/world';
import { inspect, inspectSandboxes } from '@releap/testing/inspect';

const world = await startWorld();
const stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });

const read = async (id: string) => (await world.call('GET', `/vms/${id}`)).body;
const fork = (vm: Created, body?: object): Promise<Answer> => world.call('POST', `/vms/${vm.id}/fork`, body);

async function refused(vm: Created, message: RegExp): Promise<void> {
  const count = async () => (await inspectSandboxes(world.database)).length;
  const before = [await stage.row(vm), await count()];
  const answer = await fork(vm);
  const fields = ['error', 'code', 'retryable', 'request_id'];
  assert.deepEqual([answer.status, Object.keys(answer.body)], [409, fields], answer.text);
  assert.match(answer.body.error, message);
  assert.deepEqual([await stage.row(vm), await count()], before, 'nothing has changed');
}

describe('POST /vms/:id/fork', () => {
  it('running source · persistent → source continues running; new sandbox resumed to running', async () => {
    const vm = await stage.running({
      name: 'mother',
      env: { A: '1' },
      ports: [{ vm_port: 80 }],
      cpu: 1.5,
      mem_mib: 2048,
      scratch_mib: 700,
      spot: true,
      egress_policy: { enabled: true, allow: ['10.0.0.0/8'] },
    });
    const before = await stage.row(vm);
    const source = await read(vm.id);
    stage.runner.options.script = silent;
    const answer = await fork(vm);
    assert.equal(answer.status, 200, answer.text);
    assert.ok(Compile(SandboxForkResponse).Check(answer.body));
    const { vm_id, job_id, name, status, access_token, forked_from } = answer.body;
    assert.deepEqual([name, status, forked_from], ['mother-fork', 'assigned', vm.id]);
    assert.notEqual(access_token, vm.token);
    assert.match(access_token, /^rlpv_/);

    const { id } = await inspect(world.database, { jobId: job_id });
    const assignment = await stage.runner.assigned(id);
    assert.deepEqual(
      [assignment.desired, assignment.start_from, assignment.spec.origin],
      ['running', 'memory', { type: 'fork', vm_id: vm.uuid }],
    );
    const { name: _, origin: __, root: ___, ...inherited } = assignment.spec;
    const { name: _a, root: ____, ...given } = (await stage.runner.assigned(vm.uuid)).spec;
    assert.deepEqual(inherited, given);
    await stage.runner.observed(assignment, { status: 'booting' });
    await stage.runner.observed(assignment, {
      status: 'running',
      vm_ip: '100.64.9.9',
      manifest_name: source.manifest_name,
    });
    const child = await waitFor(world.call, vm_id, 'running');
    const same = [
      'mode',
      'cpu',
      'vcpus',
      'mem_mib',
      'scratch_mib',
      'spot',
      'persistent',
      'region',
      'image_ref',
      'runner_id',
    ];
    for (const key of same) assert.deepEqual((child as Record<string, unknown>)[key], source[key], key);
    assert.equal((await read(vm_id)).forked_from, vm.id);
    assert.equal((await world.call('GET', `/jobs/${job_id}`)).body.status, 'done');
    const { updated_at } = before;
    assert.deepEqual({ ...(await stage.row(vm)), updated_at }, before, 'the source is as it was');
    // A fork never boots from its origin again once it has run.
    await world.call('POST', `/vms/${vm_id}/stop`);
    assert.equal(
      (await stage.runner.assigned(id, (one) => one.desired === 'stopped')).spec.origin,
      undefined,
    );
    stage.runner.options.script = obedientExcept(stage.left);
  });

  it('paused source · persistent, memory → new sandbox lands paused', async () => {
    const vm = await stage.paused();
    const child = await stage.forked(vm, { name: 'twin' });
    const assignment = await stage.runner.assigned(child.uuid);
    assert.deepEqual(
      [assignment.desired, assignment.start_from, assignment.spec.name],
      ['paused', undefined, 'twin'],
    );
    await stage.report(child, 'paused', { manifest_name: 'sha256:1' });
    const record = await read(child.id);
    assert.deepEqual([record.status, record.error, record.name], ['paused', null, 'twin']);
    assert.equal((await world.call('GET', `/jobs/${child.jobId}`)).body.status, 'done');
    assert.equal((await stage.row(vm)).status, 'paused');
    assert.equal((await stage.ok(child, 'resume')).start_from, 'memory');
  });

  it('a child that could not be resumed is paused, with the reason, and can be resumed', async () => {
    const vm = await stage.running();
    const child = await stage.forked(vm);
    await stage.report(child, 'paused', { error: 'no network slot is free', manifest_name: 'sha256:1' });
    const record = await read(child.id);
    assert.deepEqual([record.status, record.error], ['paused', 'no network slot is free']);
    const job = (await world.call('GET', `/jobs/${child.jobId}`)).body;
    assert.deepEqual([job.status, job.error], ['failed', 'no network slot is free']);
    await stage.ok(child, 'resume');
    await stage.report(child, 'running');
    assert.equal((await read(child.id)).status, 'running');
  });

  it('a capture that fails: the child is failed with the reason, and the source continues', async () => {
    const vm = await stage.running();
    const child = await stage.forked(vm);
    await stage.report(child, 'failed', { error: 'no space left on device' });
    const record = await read(child.id);
    assert.deepEqual([record.status, record.error], ['failed', 'no space left on device']);
    assert.equal((await stage.runner.assigned(child.uuid, (one) => one.generation === 2)).desired, 'deleted');
    assert.equal((await stage.row(vm)).status, 'running');
    await stage.forked(vm);
  });

  it('404: unknown id, malformed id, or other project’s sandbox', async () => {
    const vm = await stage.running();
    const stranger = await world.stranger();
    for (const [call, id] of [
      [stranger, vm.id],
      [world.call, 'nonsense'],
      [world.call, '00000000-0000-4000-8000-000000000000'],
    ] as const) {
      const answer = await call('POST', `/vms/${id}/fork`);
      assert.deepEqual([answer.status, answer.body.error], [404, `sandbox "${id}" not found`]);
    }
  });

  it('400: a name that cannot be shown', async () => {
    const vm = await stage.running();
    assert.equal((await fork(vm, { name: 'a\u0007b' })).status, 400);
    assert.equal((await fork(vm, { name: 7 })).status, 400);
  });

  it('409: not persistent', async () => {
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    await refused(vm, /cannot be forked: it is not persistent \(create it with persistent: true\)$/);
  });

  it('409: attached volumes', async () => {
    const vm = await stage.running();
    await stage.force(vm, 'running', 'volume_count = 1');
    await refused(vm, /cannot be forked: it has volumes attached$/);
  });

  it('409: a Docker data device, or GPUs', async () => {
    const vm = await stage.running({ docker_data_mib: 512 });
    await refused(vm, /cannot be forked: it has a Docker data device$/);
    await stage.force(vm, 'running', 'docker_data_mib = null, gpu_host = 1');
    await refused(vm, /cannot be forked: it has GPUs$/);
  });

  it('409: source not running or paused', async () => {
    const vm = await stage.running();
    for (const status of SANDBOX_STATUSES.filter((one) => !['pending', 'running', 'paused'].includes(one))) {
      await stage.force(vm, status);
      await refused(vm, new RegExp(`cannot be forked: it is ${status}, and must be running or paused$`));
    }
  });

  it('409: paused source without memory artifact', async () => {
    const vm = await stage.paused();
    await stage.report(vm, 'paused', { memory: false });
    await refused(vm, /cannot be forked: it has no saved memory/);
  });

  it('409: fork already in progress, until the child is captured', async () => {
    const vm = await stage.running();
    const first = await stage.forked(vm);
    await refused(vm, /cannot be forked: another fork of it is in progress \(here-[a-z2-7]+\)/);
    await stage.report(first, 'booting');
    const second = await stage.forked(vm);
    await stage.report(second, 'running', { manifest_name: 'sha256:1' });
    await stage.forked(vm);
  });

  it('has one winner when many fork at the same time', async () => {
    const vm = await stage.running();
    stage.runner.options.script = silent;
    const answers = await Promise.all(Array.from({ length: 8 }, () => fork(vm)));
    assert.deepEqual(
      answers.map((one) => one.status).sort((a, b) => a - b),
      [200, ...Array<number>(7).fill(409)],
    );
    stage.runner.options.script = obedientExcept(stage.left);
  });

  it('409: no capacity on its host for a running fork; a paused one needs only disk', async () => {
    const small = await world.runner({
      region: 'here',
      facts: { cores: 1, mem_mib: 300, disk_mib: 100_000 },
    });
    const vm = await stage.running({ mem_mib: 1000 });
    const place = `runner_id = '${small.id}'`;
    await stage.force(vm, 'running', place);
    await refused(
      vm,
      /its host [0-9a-f-]+, which has its disk, lacks the capacity for it now: it needs 1000 MiB of memory \(200 free\)$/,
    );
    await stage.force(vm, 'paused', `${place}, has_memory = true, desired = 'paused'`);
    small.options.script = silent;
    assert.equal((await fork(vm)).status, 200);
  });

  it('409: its host has not been heard from, or is being drained', async () => {
    const away = await world.runner();
    const vm = await stage.running();
    await stage.force(vm, 'running', `runner_id = '${away.id}'`);
    assert.equal((await world.operator('POST', `/operator/hosts/${away.id}/drain`)).status, 200);
    // What the drain has asked for is answered before anything else is said of it.
    await until(async () => (await stage.row(vm)).status === 'paused');
    // As one that could not be paused: the drain lets it be for a while.
    await stage.force(vm, 'running', `error = 'it continues', desired = 'running'`);
    await refused(vm, /its host [0-9a-f-]+, which has its disk, is being drained$/);
    await world.operator('POST', `/operator/hosts/${away.id}/undrain`);
    await lose(world, away);
    await refused(vm, /has not been heard from since/);
  });
});

describe('a fork that is interrupted', () => {
  it('whose host never answers fails in time, and leaves nothing behind', async () => {
    const vm = await stage.running();
    const child = await stage.forked(vm);
    await stage.timeOver(child);
    const record = await read(child.id);
    assert.equal(record.status, 'failed');
    assert.match(record.error, /it was assigned for longer than/);
    assert.equal((await stage.row(child)).desired, 'deleted');
  });

  it('after the capture it is paused when its time is over', async () => {
    const vm = await stage.running();
    const child = await stage.forked(vm);
    await stage.report(child, 'booting');
    await stage.timeOver(child);
    assert.deepEqual(
      [(await stage.row(child)).status, (await stage.row(child)).desired],
      ['paused', 'paused'],
    );
  });

  for (const reported of ['assigned', 'booting', 'running'] as const) {
    it(`can be deleted while ${reported}`, async () => {
      const vm = await stage.running();
      const child = await stage.forked(vm);
      if (reported !== 'assigned') await stage.report(child, reported);
      assert.equal((await world.call('DELETE', `/vms/${child.id}`)).status, 200);
      const gone = await stage.runner.assigned(child.uuid, (one) => one.desired === 'deleted');
      assert.equal(gone.spec.origin, undefined);
      await stage.report(child, 'deleting');
      await stage.report(child, 'deleted');
      assert.deepEqual(
        [
          (await read(child.id)).status,
          (await stage.row(child)).assigned_to_runner,
          (await stage.row(vm)).status,
        ],
        ['deleted', false, 'running'],
      );
    });
  }

  it('continues after its host was disconnected and has returned', async () => {
    await using mine = await startWorld({ limits: { runnerLostAfterMs: 3_000 } });
    const runner = await mine.runner();
    const vm = await create(mine.call, mine, { persistent: true });
    await waitFor(mine.call, vm.id, 'running');
    runner.options.script = silent;
    const answer = await mine.call('POST', `/vms/${vm.id}/fork`);
    assert.equal(answer.status, 200, answer.text);
    const child = answer.body.vm_id;
    runner.drop();
    await waitFor(mine.call, child, 'lost');
    runner.assignments.clear();
    await runner.connect();
    await until(() => runner.assignments.size === 2);
    const again = [...runner.assignments.values()].find((one) => one.vm_id !== vm.uuid);
    assert.ok(again);
    assert.deepEqual(
      [again.desired, again.start_from, again.spec.origin],
      ['running', 'memory', { type: 'fork', vm_id: vm.uuid }],
    );
    await runner.observed(again, { status: 'booting' });
    await runner.observed(again, { status: 'running', manifest_name: 'sha256:1' });
    await waitFor(mine.call, child, 'running');
  });
});
