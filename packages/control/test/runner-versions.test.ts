/** Runners of other versions with this control plane (docs/runner-protocol.md, 'Versions'). */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { create, obedient, silent, startWorld, until, waitFor, host } from '@releap/testing/world';

const world = await startWorld();

const status = async (id: string): Promise<string> => (await world.call('GET', `/vms/${id}`)).body.status;

describe('an older runner, which knows fewer kinds and fields', () => {
  it('runs sandboxes, and is leased no build', async () => {
    await using runner = await world.runner({ hello: { kinds: ['sandbox'], capabilities: [] } });
    const image = await world.call('POST', '/images', { name: 'later', source: 'localhost:5000/later' });
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    await world.control.sweep();
    assert.equal((await world.call('GET', `/jobs/${image.body.job_id}`)).body.status, 'queued');
    assert.deepEqual(runner.builds, []);
    await using newer = await world.runner();
    await until(async () => (await world.call('GET', `/jobs/${image.body.job_id}`)).body.status === 'done');
    assert.equal(newer.builds.length > 0, true);
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
  });

  it('fails a sandbox that it cannot read, with the reason; a running one keeps its state', async () => {
    await using runner = await world.runner({ script: silent });
    const unsupported = async (uuid: string, error: string): Promise<void> => {
      const { vm_id: id, generation } = await runner.assigned(uuid);
      const report = { kind: 'sandbox', id, generation, status: 'unsupported', detail: { error } } as const;
      const seq = runner.report(report);
      await until(() => runner.acked >= seq);
    };
    const fresh = await create(world.call, world);
    await unsupported(fresh.uuid, '/spec/mode must be one of: burstable, dedicated');
    const failed = await waitFor(world.call, fresh.id, 'failed');
    assert.equal(failed.error, 'its host cannot run it: /spec/mode must be one of: burstable, dedicated');
    const vm = await create(world.call, world, { persistent: true });
    await runner.observed(await runner.assigned(vm.uuid), { status: 'running', manifest_name: 'sha256:x' });
    await world.call('POST', `/vms/${vm.id}/pause`);
    await runner.assigned(vm.uuid, (one) => one.desired === 'paused');
    await unsupported(vm.uuid, '/desired must be one of: running, stopped, deleted');
    assert.equal(await status(vm.id), 'pausing');
    assert.equal(runner.closeCode, undefined);
  });

  it('fails a snapshot that it does not know, and loses none that exists', async () => {
    await using runner = await world.runner();
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    runner.options.snapshot = ({ snapshot_id: id, generation }, self) =>
      void self.report({
        kind: 'snapshot',
        id,
        generation,
        status: 'unsupported',
        detail: { error: 'the kind snapshot is not known' },
      });
    const taken = await world.call('POST', `/vms/${vm.id}/snapshots`, { name: `n-${vm.uuid}`, kind: 'disk' });
    assert.equal(taken.status, 200, taken.text);
    await until(async () => (await world.call('GET', `/jobs/${taken.body.job_id}`)).body.status === 'failed');
    assert.match(
      (await world.call('GET', `/jobs/${taken.body.job_id}`)).body.error,
      /its host cannot take it: the kind snapshot is not known/,
    );
    assert.equal(await status(vm.id), 'running');
  });
});

describe('a newer runner, which knows more kinds, statuses, message types and fields', () => {
  it('continues with all that both know', async () => {
    await using runner = await world.runner({
      hello: {
        protocol: 7,
        capabilities: ['live-migration'],
        kinds: ['sandbox', 'snapshot', 'build', 'tunnel'],
        ...({ zone: 'b' } as object),
      },
      script(assignment, self) {
        const { vm_id: id, generation } = assignment;
        self.sendRaw(JSON.stringify({ type: 'temperature', celsius: 40 }));
        self.sendRaw(
          JSON.stringify({
            type: 'report',
            seq: ++self.seq,
            priority: 'high',
            items: [
              { kind: 'sandbox', id, generation, status: 'warming', detail: {} },
              { kind: 'tunnel', id: randomUUID(), generation: 1, status: 'attached', detail: { path: '/x' } },
            ],
          }),
        );
        void obedient(assignment, self);
      },
    });
    const welcome = runner.received.find((message) => message.type === 'welcome');
    assert.equal(welcome?.protocol, 1, 'both speak the older version');
    assert.deepEqual(
      new Set(welcome?.kinds),
      new Set(['sandbox', 'snapshot', 'build', 'artifact', 'volume']),
    );
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    await until(() => runner.acked >= runner.seq);
    const refused = runner.received.flatMap((message) =>
      message.type === 'ack' ? (message.unsupported ?? []).map(({ kind }) => kind) : [],
    );
    assert.deepEqual([...new Set(refused)].sort(), ['sandbox', 'tunnel']);
    await world.call('DELETE', `/vms/${vm.id}`);
    await waitFor(world.call, vm.id, 'deleted');
    assert.equal(runner.closeCode, undefined);
  });
});

describe('the deployment of a runner', () => {
  it('is sent to it at the first connection; another deployment refuses the runner, with both ids', async () => {
    await using runner = await world.runner();
    const welcome = runner.received.find((message) => message.type === 'welcome');
    const { rows } = await world.database.pool.query<{ id: string }>('select id from deployment');
    assert.deepEqual([{ id: welcome?.deployment_id }], rows);
    await using same = await world.runner({ hello: { deployment_id: rows[0]?.id ?? '' } });
    assert.equal(same.closeCode, undefined);
    const other = randomUUID();
    await using stray = await world.runner({ hello: { deployment_id: other } });
    await until(() => stray.closeCode !== undefined);
    assert.deepEqual(
      [stray.closeCode, stray.closeReason],
      [4006, `the runner belongs to deployment ${other}, this is ${rows[0]?.id}`],
    );
    assert.equal(await host(world, stray.id), undefined, 'nothing of it is stored');
  });
});
