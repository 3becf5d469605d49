/** Sandboxes whose source is a snapshot: `POST /vms` with `{type: snapshot, name}`. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { toAssignment } from '@releap/testing/runner-messages';
import { obedientExcept, Stage } from './support/lifecycle.ts';
import {
  CAPTURED,
  lose,
  startWorld,
  takesSnapshots,
  until,
  waitFor,
  host,
  hosts,
  type Answer,
  type Created,
} from '@releap/testing/world';
import { inspect, inspectSnapshot } from '@releap/testing/inspect';

const world = await startWorld();
const stage = await Stage.on(world);
await world.database.pool.query(
  `insert into global_regions (id, name) values ('west', 'West') on conflict do nothing;
   insert into regions (id, name, global_region_id) values ('there', 'There', 'west');
   update regions set global_region_id = 'west' where id = 'here'`,
);
// Emptier than the first in everything: without affinity it would be taken.
const other = await world.runner({ facts: { cores: 64, mem_mib: 500_000, disk_mib: 900_000 }, ready: false });
await world.runner({ region: 'there', facts: { cores: 64, mem_mib: 500_000 } });

let count = 0;
async function snapshot(vm: Created, kind: 'disk' | 'full'): Promise<{ id: string; name: string }> {
  const answer = await world.call('POST', `/vms/${vm.id}/snapshots`, { name: `restored-${++count}`, kind });
  assert.equal(answer.status, 200, answer.text);
  const record = (await world.call('GET', `/snapshots/${answer.body.id}?wait=ready&timeout_ms=60000`)).body;
  assert.equal(record.status, 'ready', JSON.stringify(record));
  return record;
}
const disk = async (body: object = {}) =>
  snapshot(await stage.running({ persistent: false, ...body }), 'disk');
const full = async (body: object = {}) => snapshot(await stage.running(body), 'full');
const restore = ({ name }: { name: string }, body: object = {}): Promise<Answer> =>
  world.call('POST', '/vms', { image: { type: 'snapshot', name }, ...body });
async function restored(of: { name: string }, body: object = {}) {
  const answer = await restore(of, body);
  assert.equal(answer.status, 200, answer.text);
  const record = await waitFor(world.call, answer.body.vm_id, 'running');
  const row = await inspect(world.database, { jobId: answer.body.job_id });
  const first = stage.runner.received
    .flatMap((message) => (message.type === 'desired' ? message.items : []))
    .find((item) => item.kind === 'sandbox' && item.id === row.id);
  assert.ok(first?.kind === 'sandbox', 'it is on the host that keeps the snapshot');
  return { record, assignment: toAssignment(first), row };
}

describe('POST /vms from a snapshot', () => {
  it('disk: on its own host, with its disk size, and with what was asked for else; may be persistent', async () => {
    other.heartbeat(true);
    const from = await disk({ env: { A: '1' }, ports: [{ vm_port: 80 }], scratch_mib: 700, mem_mib: 256 });
    // The sandbox may have landed on either; from here on only the other would be chosen.
    const { runner_id } = await inspectSnapshot(world.database, from.id);
    const holder = runner_id === other.id ? other : stage.runner;
    const answer = await restore(from, { mem_mib: 2048, persistent: true });
    const record = await waitFor(world.call, answer.body.vm_id, 'running');
    assert.deepEqual(
      [
        record.runner_id,
        record.scratch_mib,
        record.mem_mib,
        record.persistent,
        record.image_ref,
        record.region,
      ],
      [holder.id, 700, 2048, true, `snapshot:${from.name}`, 'here'],
    );
    const assignment = [...holder.assignments.values()].find((one) => one.spec.origin?.type === 'snapshot');
    assert.deepEqual(assignment?.spec.origin, { type: 'snapshot', snapshot_id: from.id, kind: 'disk' });
    assert.deepEqual(
      [assignment?.start_from, assignment?.spec.env, assignment?.spec.ports],
      ['disk', {}, []],
    );
    other.heartbeat(false);
    await until(async () => (await host(world, other.id))?.ready === false);
  });

  it('full: continues with its memory, cores and disk, persistent, with env, ports and egress policy of its source', async () => {
    const from = await full({
      env: { A: '1' },
      ports: [{ vm_port: 80 }],
      egress_policy: { enabled: true, allow: ['10.0.0.0/8'] },
      mem_mib: 512,
      scratch_mib: 700,
    });
    const { record, assignment, row } = await restored(from);
    assert.deepEqual(
      [record.cpu, record.vcpus, record.mem_mib, record.scratch_mib, record.persistent, record.spot],
      [0.125, 2, 512, 700, true, false],
    );
    assert.deepEqual(
      [assignment.desired, assignment.start_from, assignment.spec.origin],
      ['running', 'memory', { type: 'snapshot', snapshot_id: from.id, kind: 'full' }],
    );
    assert.deepEqual(
      [assignment.spec.env, assignment.spec.ports, assignment.spec.egress],
      [{ A: '1' }, [{ vm_port: 80, proto: 'tcp' }], { enabled: true, allow: ['10.0.0.0/8'] }],
    );
    assert.deepEqual([row.parent_snapshot_id, row.has_memory, row.start_from], [from.id, false, 'disk']);
    const own = await restored(from, { env: { B: '2' }, ports: [], spot: true, cpu: 2, mem_mib: 512 });
    assert.deepEqual(
      [own.assignment.spec.env, own.assignment.spec.ports, own.record.spot, own.record.cpu, own.record.vcpus],
      [{ B: '2' }, [], true, 2, 2],
    );
  });

  it('boots the root image of the snapshot, even if its tag means another one by now', async () => {
    const from = await disk({ image: 'registry.example/app:1' });
    const { assignment } = await restored(from);
    assert.deepEqual(assignment.spec.root, {
      type: 'registry',
      ref: 'registry.example/app:1',
      project_id: world.call.projectId,
      digest: CAPTURED.manifest_name,
    });
  });

  it('404: snapshot named in image does not exist, was deleted, or is of another project', async () => {
    const from = await disk();
    const stranger = await world.stranger();
    const theirs = await stranger('POST', '/vms', { image: { type: 'snapshot', name: from.name } });
    assert.deepEqual([theirs.status, theirs.body.error], [404, `snapshot "${from.name}" not found`]);
    await world.call('DELETE', `/snapshots/${from.id}`);
    assert.equal((await restore(from)).status, 404);
  });

  it('409: snapshot not ready', async () => {
    const vm = await stage.running({ persistent: false });
    stage.runner.options.snapshot = () => undefined;
    const { id, name } = (await world.call('POST', `/vms/${vm.id}/snapshots`, { name: 'late' })).body;
    const answer = await restore({ name });
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, /snapshot "late" cannot be restored: it is not ready yet \(pending\)/);
    await stage.runner.observedSnapshot(
      { snapshot_id: id, generation: 1 },
      { status: 'failed', error: 'no space' },
    );
    assert.match((await restore({ name })).body.error, /it is not ready but failed: no space$/);
  });

  it('full, 400: outside its home region; a global region that has it is its home', async () => {
    stage.runner.options.snapshot = takesSnapshots;
    const from = await full();
    const answer = await restore(from, { region: 'there' });
    assert.equal(answer.status, 400);
    assert.match(answer.body.error, /can only be restored in its home region "here", not in "there"$/);
    assert.equal((await restored(from, { region: 'west' })).record.region, 'here');
  });

  it('disk, 409: in another region, while it is not in the store', async () => {
    const answer = await restore(await disk(), { region: 'there' });
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, /is still replicating into the region "there": try again in a moment/);
  });

  it('400: other sizes than the snapshot has, with both values', async () => {
    const from = await full({ mem_mib: 512 });
    for (const [body, message] of [
      [{ mem_mib: 1024 }, /mem_mib is 1024, but that of snapshot "restored-\d+" is 512/],
      [{ scratch_mib: 1000 }, /scratch_mib is 1000, but that .* is 512/],
      [{ vcpus: 4 }, /vcpus is 4, but that .* is 2/],
      [{ cpu: 7 }, /vcpus is 7, but that .* is 2/],
      [{ cpu_arch: 'arm64' }, /cpu_arch is arm64, but that .* is amd64/],
      [{ gpu_host: 1 }, /gpu_host cannot be combined with a full snapshot/],
      [{ docker_data_mib: 512 }, /docker_data_mib cannot be combined with a full snapshot/],
      [{ volumes: [{ volume: 'v', mount_path: '/v' }] }, /volumes cannot be combined with a full snapshot/],
    ] as const) {
      const answer = await restore(from, body);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, message);
    }
    assert.match(
      (await restore(await disk(), { scratch_mib: 600 })).body.error,
      /scratch_mib is 600, but that .* is 512/,
    );
  });

  it('full, 409: its host has another VMM or CPU by now, with both values', async () => {
    const from = await full();
    const facts = async (what: object) => {
      stage.runner.drop();
      await until(() => stage.runner.closeCode !== undefined);
      stage.runner.options.facts = what;
      await stage.runner.connect();
      await until(async () => (await world.call('GET', '/healthz')).status === 200);
    };
    await facts({ vmm: 'scripted 2' });
    const answer = await restore(from);
    assert.equal(answer.status, 409);
    assert.match(
      answer.body.error,
      /was taken with the VMM "scripted 1", and its host has "scripted 2" now$/,
    );
    await facts({ accelerator: 'kvm' });
    assert.match(
      (await restore(from)).body.error,
      /was taken on the CPU "max tcg", and its host has "max kvm" now$/,
    );
    await facts({});
    await restored(from);
  });

  it('409: its host is being drained, or has not been heard from', async () => {
    const from = await disk();
    const drain = (verb: string) => world.operator('POST', `/operator/hosts/${stage.runner.id}/${verb}`);
    await drain('drain');
    assert.match((await restore(from)).body.error, /its host [0-9a-f-]+ is being drained$/);
    await drain('undrain');
    await lose(world, stage.runner);
    assert.match((await restore(from)).body.error, /its host [0-9a-f-]+ has not been heard from since/);
    await stage.runner.connect();
  });

  it('waits for the host that has the snapshot, and says so when that does not connect in time', async () => {
    const from = await disk();
    stage.runner.heartbeat(false);
    await until(async () => (await host(world, stage.runner.id))?.ready === false);
    other.heartbeat(true);
    const answer = await restore(from);
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.equal((await world.call('GET', `/vms/${answer.body.vm_id}`)).body.status, 'pending');
    await world.database.pool.query(
      `update sandboxes set deadline_at = now() - interval '1 second' where job_id = $1`,
      [answer.body.job_id],
    );
    const record = await waitFor(world.call, answer.body.vm_id, 'failed');
    assert.match(
      record.error ?? '',
      /the host [0-9a-f-]+, which has its image or snapshot, is not connected and ready/,
    );
    other.heartbeat(false);
    stage.runner.heartbeat(true);
    await until(async () => {
      const ready = (await hosts(world)).filter((one) => one.ready && one.region === 'here');
      return ready.length === 1 && ready[0]?.id === stage.runner.id;
    });
  });

  it('full, that does not succeed: failed before it has a disk of its own, paused after', async () => {
    const from = await full();
    await until(async () => (await world.call('GET', '/healthz')).status === 200);
    stage.runner.options.script = () => undefined;
    const one = await restore(from);
    const uuid = async (answer: Answer): Promise<string> =>
      (await inspect(world.database, { jobId: answer.body.job_id })).id;
    const first = await stage.runner.assigned(await uuid(one));
    await stage.runner.observed(first, { status: 'failed', error: 'no space left' });
    assert.deepEqual((await world.call('GET', `/vms/${one.body.vm_id}`)).body.status, 'failed');
    assert.equal((await stage.runner.assigned(first.vm_id, (a) => a.generation === 2)).desired, 'deleted');

    const two = await restore(from);
    const second = await stage.runner.assigned(await uuid(two));
    await stage.runner.observed(second, { status: 'booting' });
    await stage.runner.observed(second, {
      status: 'paused',
      error: 'no slot',
      manifest_name: CAPTURED.manifest_name,
    });
    const record = (await world.call('GET', `/vms/${two.body.vm_id}`)).body;
    assert.deepEqual([record.status, record.error], ['paused', 'no slot']);
    assert.equal((await world.call('POST', `/vms/${two.body.vm_id}/resume`)).status, 200);
    const again = await stage.runner.assigned(second.vm_id, (a) => a.generation === 3);
    assert.deepEqual([again.start_from, again.spec.origin], ['memory', undefined]);
    stage.runner.options.script = obedientExcept(stage.left);
  });
});
