/** Moves of sandboxes between hosts: what each host is told, when the row names the other one, and what failures leave. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { ArtifactAssignment } from '@releap/contract/runner';
import type { HostMove, HostMoves } from '@releap/contract';
import { credentialOf } from '@releap/testing/credentials';
import { inspect } from '@releap/testing/inspect';
import {
  create,
  host,
  lose,
  obedient,
  startWorld,
  until,
  waitFor,
  type Assignment,
  type Created,
  type Script,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';

const MANIFEST = `sha256:${'ab'.repeat(32)}`;
const CONTENT = 'what it has';
const DIGEST = `sha256:${createHash('sha256').update(CONTENT).digest('hex')}`;

let world: World;
beforeEach(async () => {
  world = await startWorld({
    limits: { moves: { storeMs: 60_000, placeMs: 60_000, resumeMs: 60_000, retryMs: 50 } },
  });
});
afterEach(() => world[Symbol.asyncDispose]());

/** Obeys, and has all that is moved to it. */
const takesMoved: Script = (assignment, runner) => {
  const { desired, spec } = assignment;
  if (desired !== 'stopped' && desired !== 'paused') return obedient(assignment, runner);
  if (isCopy(assignment)) runner.observe(assignment, { status: 'building' });
  runner.observe(assignment, { status: desired, manifest_name: spec.disk_manifest ?? MANIFEST });
};
const isCopy = ({ spec }: Assignment): boolean =>
  spec.origin?.type === 'snapshot' && spec.origin.moved === true;

/** Uploads what it is to store. */
async function upload(
  runner: ScriptedRunner,
  { id, generation, desired }: ArtifactAssignment,
): Promise<void> {
  if (desired !== 'stored')
    return void runner.report({ kind: 'artifact', id, generation, status: desired, detail: {} });
  const answer = await fetch(`${world.internalUrl}/internal/blobs/${DIGEST}?location=${id}`, {
    method: 'PUT',
    headers: {
      authorization: `Bearer ${credentialOf(runner.id)}`,
      'content-type': 'application/octet-stream',
    },
    body: CONTENT,
  });
  assert.equal(answer.status, 204, await answer.text());
  const parts = [{ name: 'snapshot.json', digest: DIGEST, bytes: CONTENT.length }];
  runner.report({ kind: 'artifact', id, generation, status: 'stored', detail: { parts } });
}
const uploads = (assignment: ArtifactAssignment, runner: ScriptedRunner): void =>
  void upload(runner, assignment).catch(() => undefined);

const newHost = (options: Parameters<World['runner']>[0] = {}): Promise<ScriptedRunner> =>
  world.runner({ script: takesMoved, artifact: uploads, ...options });

async function running(body: object = {}): Promise<Created> {
  const vm = await create(world.call, world, { persistent: true, ...body });
  await waitFor(world.call, vm.id, 'running');
  return vm;
}
async function resting(verb: 'stop' | 'pause', body: object = {}): Promise<Created> {
  const vm = await running(body);
  assert.equal((await world.call('POST', `/vms/${vm.id}/${verb}`)).status, 200);
  await waitFor(world.call, vm.id, verb === 'stop' ? 'stopped' : 'paused');
  return vm;
}

async function drain(runner: ScriptedRunner, body: object = { move: true }): Promise<void> {
  const answer = await world.operator('POST', `/operator/hosts/${runner.id}/drain`, body);
  assert.equal(answer.status, 200, answer.text);
}
async function moves(runner: ScriptedRunner): Promise<HostMove[]> {
  const answer = await world.operator('GET', `/operator/hosts/${runner.id}/moves`);
  assert.equal(answer.status, 200, answer.text);
  return (answer.body as HostMoves).moves;
}
const moveOf = async (runner: ScriptedRunner, vm: Created): Promise<HostMove | undefined> =>
  (await moves(runner)).find(({ vm_id: id }) => id === vm.id);
const untilMove = (runner: ScriptedRunner, vm: Created, status: HostMove['status']): Promise<void> =>
  until(async () => (await moveOf(runner, vm))?.status === status);
const record = async (vm: Created) => (await world.call('GET', `/vms/${vm.id}`)).body;
const isRemoved = (runner: ScriptedRunner, vm: Created): Promise<void> =>
  until(async () => {
    const { rowCount } = await world.database.pool.query(
      'select 1 from sandbox_moves where sandbox_id = $1 and copy_on = $2',
      [vm.uuid, runner.id],
    );
    return runner.assignments.get(vm.uuid)?.desired === 'deleted' && rowCount === 0;
  });

describe('rlp host drain --move', () => {
  it('moves what does not run, resumes what ran, and empties the host', async () => {
    const source = await newHost();
    const [stopped, paused, ran] = [await resting('stop'), await resting('pause'), await running()];
    const booted = await running({ docker_data_mib: 512 });
    const target = await newHost();
    await drain(source);
    for (const vm of [stopped, paused, ran, booted]) await untilMove(source, vm, 'done');
    for (const [vm, status] of [
      [stopped, 'stopped'],
      [paused, 'paused'],
      [ran, 'running'],
      [booted, 'running'],
    ] as const) {
      const { status: is, runner_id: where } = await record(vm);
      assert.deepEqual([is, where], [status, target.id], vm.id);
      await isRemoved(source, vm);
    }
    // One continues from its memory, the other one could not be paused.
    assert.equal(target.assignments.get(ran.uuid)?.start_from, 'memory');
    assert.equal(target.assignments.get(booted.uuid)?.start_from, 'disk');
    assert.equal(target.assignments.get(ran.uuid)?.spec.origin, undefined);
    const shown = await host(world, source.id);
    assert.deepEqual([shown?.move, shown?.moving, shown?.sandboxes], [true, 0, {}]);
    const list = await moves(source);
    for (const { resumes, pause_ms: pause } of list) assert.equal(pause !== null, resumes);
    assert.deepEqual([list.length, list.filter(({ resumes }) => resumes).length], [4, 2]);
    const metrics = await world.operator('GET', '/metrics');
    assert.match(metrics.text, /^releap_sandbox_move_pause_seconds_count 2$/m);
  });

  it('pauses a few at a time, and those that could not be moved before run again when it ends', async () => {
    const source = await newHost({ artifact: () => undefined });
    const vms: Created[] = [];
    for (let n = 0; n < 6; n++) vms.push(await running());
    const target = await newHost();
    await drain(source);
    const statuses = async () =>
      Object.entries((await host(world, source.id))?.sandboxes ?? {}).sort(([a], [b]) => a.localeCompare(b));
    await until(async () => (await moves(source)).filter(({ status }) => status === 'storing').length === 4);
    await world.control.sweep();
    assert.deepEqual(await statuses(), [
      ['paused', 4],
      ['running', 2],
    ]);
    // The first is uploaded: the next one is paused.
    const [stored] = [...source.artifacts.values()];
    assert.ok(stored);
    await upload(source, stored);
    await until(async () => ((await host(world, target.id))?.sandboxes.running ?? 0) === 1);
    await until(async () => (await moves(source)).length === 5);
    // One fails for good, and waits for its next attempt.
    const failing = [...source.artifacts.values()].find(({ id }) => id !== stored.id);
    await world.database.pool.query(
      `update artifact_locations set attempts = 3, error = 'the disk is gone' where id = $1`,
      [failing?.id],
    );
    await until(async () => (await moves(source)).some(({ status }) => status === 'failed'));
    assert.equal((await world.operator('POST', `/operator/hosts/${source.id}/undrain`)).status, 200);
    await until(async () =>
      (await statuses()).every(([status, count]) => status === 'running' && count === 5),
    );
    for (const vm of vms) assert.equal((await inspect(world.database, vm)).move_id, null);
  });

  it('a drain without it moves nothing', async () => {
    const source = await newHost();
    const vm = await running();
    await newHost();
    await drain(source, {});
    await waitFor(world.call, vm.id, 'paused');
    await world.control.sweep();
    assert.deepEqual([await moves(source), (await record(vm)).runner_id], [[], source.id]);
  });

  it('ends with the drain: what has been paused for it runs again where it is', async () => {
    const source = await newHost();
    const vm = await running();
    await drain(source);
    await untilMove(source, vm, 'waiting');
    await until(async () => /no other host/.test((await moveOf(source, vm))?.error ?? ''));
    assert.equal((await world.operator('POST', `/operator/hosts/${source.id}/undrain`)).status, 200);
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await record(vm)).runner_id, source.id);
  });
});

describe('a move in progress', () => {
  it('refuses a start for now; nothing of it is on two hosts before the row names the other one', async () => {
    const source = await newHost({ artifact: () => undefined });
    const vm = await resting('pause');
    const target = await newHost({ script: () => undefined });
    await drain(source);
    await untilMove(source, vm, 'storing');
    for (const verb of ['start', 'resume', 'fork']) {
      const answer = await world.call('POST', `/vms/${vm.id}/${verb}`);
      assert.deepEqual(
        [answer.status, answer.body.code, answer.body.retryable],
        [409, 'concurrent_change', true],
      );
      assert.match(answer.body.error, /is being moved to another host: try again/);
      if (verb !== 'fork') assert.equal(answer.headers.get('retry-after'), '5');
    }
    assert.equal(target.assignments.has(vm.uuid), false);
    const move = await moveOf(source, vm);
    assert.equal(move?.target, target.id);
    const [stored] = [...source.artifacts.values()];
    assert.ok(stored);
    assert.deepEqual([stored.spec.type, stored.spec.vm_id], ['sandbox', vm.uuid]);
    await upload(source, stored);
    const copy = await target.assigned(vm.uuid, isCopy);
    assert.equal(copy.desired, 'paused');
    assert.equal((await inspect(world.database, vm)).runner_id, source.id);
    assert.equal(source.assignments.get(vm.uuid)?.desired, 'paused');

    // A report of its former host, or of before, changes nothing any more.
    await target.observed(copy, { status: 'paused', manifest_name: MANIFEST });
    await untilMove(source, vm, 'done');
    const { generation, runner_id: now } = await inspect(world.database, vm);
    assert.deepEqual([now, generation], [target.id, copy.generation]);
    await source.observed({ vm_id: vm.uuid, generation }, { status: 'failed', error: 'of the former host' });
    assert.equal((await record(vm)).status, 'paused');
  });

  it('is not that of another organization: it sees nothing of the sandbox', async () => {
    const source = await newHost({ artifact: () => undefined });
    const vm = await resting('stop');
    await newHost();
    const stranger = await world.stranger();
    await drain(source);
    await untilMove(source, vm, 'storing');
    assert.equal((await stranger('POST', `/vms/${vm.id}/start`)).status, 404);
  });

  it('ends with a deletion of the sandbox, and the other host removes what it has', async () => {
    const source = await newHost();
    const vm = await resting('stop');
    const target = await newHost({
      script: (assignment, self) => (isCopy(assignment) ? undefined : obedient(assignment, self)),
    });
    await drain(source);
    await target.assigned(vm.uuid, isCopy);
    assert.equal((await world.call('DELETE', `/vms/${vm.id}`)).status, 200);
    await waitFor(world.call, vm.id, 'deleted');
    await untilMove(source, vm, 'failed');
    await isRemoved(target, vm);
    await source.assigned(vm.uuid, ({ desired }) => desired === 'deleted');
  });

  it('of a sandbox with volumes waits until its host has committed them, and mounts them on the other one', async () => {
    const made = await world.call('POST', '/volumes', { name: 'data', size_gb: 1 });
    assert.equal(made.status, 200, made.text);
    const { id: volume } = made.body;
    const source = await newHost({ volume: () => undefined });
    const vm = await running({ volumes: [{ volume: 'data', mount_path: '/data' }] });
    const dirty = async (detail: object): Promise<void> => {
      const generation = source.volumes.get(volume)?.generation ?? 0;
      const seq = source.report({ kind: 'volume', id: volume, generation, status: 'present', detail });
      await until(() => source.acked >= seq);
    };
    await dirty({ dirty_since: '2026-01-02T03:04:05Z', commit: 0 });
    const target = await newHost();
    await drain(source);
    await until(async () => /committing changes/.test((await moveOf(source, vm))?.error ?? ''));
    await dirty({ commit: 1 });
    await untilMove(source, vm, 'done');
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await record(vm)).runner_id, target.id);
    assert.ok(target.volumes.has(volume));
    assert.equal(target.assignments.get(vm.uuid)?.start_from, 'disk');
  });

  it('continues after a restart of the server', async () => {
    const source = await newHost({ artifact: () => undefined });
    const vm = await running();
    const target = await newHost();
    await drain(source);
    await untilMove(source, vm, 'storing');
    await world.restart();
    source.options.artifact = uploads;
    await source.connect();
    await target.connect();
    await untilMove(source, vm, 'done');
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await record(vm)).runner_id, target.id);
  });

  it('waits until a pending fork of it has been captured', async () => {
    const source = await newHost();
    const vm = await resting('pause');
    const target = await newHost();
    source.options.script = () => undefined;
    const forked = await world.call('POST', `/vms/${vm.id}/fork`);
    assert.equal(forked.status, 200, forked.text);
    const child = await inspect(world.database, { jobId: forked.body.job_id });
    const assignment = await source.assigned(child.id);
    await drain(source);
    await until(async () => (await moveOf(source, vm))?.error === 'a fork of it is pending');
    assert.equal((await record(vm)).runner_id, source.id);
    source.options.script = takesMoved;
    await source.observed(assignment, { status: 'paused', manifest_name: MANIFEST });
    await untilMove(source, vm, 'done');
    assert.equal((await record(vm)).runner_id, target.id);
  });
});

describe('a move that fails', () => {
  it('of a host that cannot resume the memory: the sandbox stays, with the reason', async () => {
    const source = await newHost();
    const vm = await resting('pause');
    const other = await newHost({ facts: { cpu_model: 'another' } });
    await drain(source);
    await until(async () =>
      /no other host .* can resume its memory/.test((await moveOf(source, vm))?.error ?? ''),
    );
    assert.deepEqual([(await record(vm)).runner_id, other.assignments.has(vm.uuid)], [source.id, false]);
    assert.equal((await host(world, source.id))?.moving, 1);
  });

  it('of a host of an earlier version: nothing is sent to it that it does not know', async () => {
    const source = await newHost({ hello: { capabilities: [] } });
    const vm = await resting('stop');
    await newHost();
    await drain(source);
    await until(async () => /has an earlier version/.test((await moveOf(source, vm))?.error ?? ''));
    assert.equal(source.artifacts.size, 0);
  });

  it('of one that says so itself, which removes its copy', async () => {
    const source = await newHost();
    const vm = await resting('pause');
    const target = await newHost({
      script: (assignment, self) =>
        isCopy(assignment)
          ? void self.observe(assignment, {
              status: 'paused',
              manifest_name: MANIFEST,
              memory_blocked: 'another QEMU',
            })
          : obedient(assignment, self),
    });
    await drain(source);
    await untilMove(source, vm, 'failed');
    assert.match((await moveOf(source, vm))?.error ?? '', /another QEMU/);
    await isRemoved(target, vm);
    const {
      runner_id: where,
      move_id: move,
      status,
      memory_blocked: blocked,
    } = await inspect(world.database, vm);
    assert.deepEqual([where, move, status, blocked], [source.id, null, 'paused', null]);
  });

  it('is tried again with another host when the target is lost; the lost one removes its copy when it returns', async () => {
    const source = await newHost();
    const vm = await running();
    const target = await newHost({ script: (one, self) => (isCopy(one) ? undefined : obedient(one, self)) });
    await drain(source);
    await target.assigned(vm.uuid, isCopy);
    await lose(world, target);
    await untilMove(source, vm, 'failed');
    const next = await newHost();
    await world.database.pool.query(
      `update sandbox_moves set updated_at = updated_at - interval '1 minute' where status = 'failed'`,
    );
    await until(async () => (await record(vm)).runner_id === next.id);
    // It ran before the first move.
    await waitFor(world.call, vm.id, 'running');
    await target.connect();
    await isRemoved(target, vm);
    assert.equal((await record(vm)).runner_id, next.id);
  });

  it('continues without the source once the content is in the store, also when that is forgotten', async () => {
    const source = await newHost();
    const vm = await resting('pause');
    const target = await newHost({ script: () => undefined });
    await drain(source);
    const copy = await target.assigned(vm.uuid, isCopy);
    await lose(world, source);
    assert.equal((await world.operator('DELETE', `/operator/hosts/${source.id}`)).status, 200);
    assert.equal((await record(vm)).status, 'paused');
    await target.observed(copy, { status: 'paused', manifest_name: MANIFEST });
    await until(async () => (await record(vm)).runner_id === target.id);
  });
});
