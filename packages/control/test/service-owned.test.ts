/** Sandboxes that a part of the service owns: tenants of their project cannot list, reach or count them. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { formatSandboxId, newToken, newUuid } from '@releap/contract';
import { inspect } from '@releap/testing/inspect';
import { create, REGION, startWorld, until, waitFor } from '@releap/testing/world';
import { createSandbox } from '../src/compute/sandboxes/insert.ts';

const world = await startWorld();

async function ofService(): Promise<string> {
  const ids = { id: newUuid(), jobId: newUuid(), accessToken: newToken('sandbox') };
  await createSandbox(world.database.pool, {
    owner: { kind: 'service', service: 'functions', projectId: world.call.projectId },
    spec: {
      name: 'instance',
      region: REGION,
      cpu_arch: 'amd64',
      mode: 'burstable',
      cpu: 0.5,
      vcpus: 1,
      mem_mib: 256,
      scratch_mib: 64,
      gpu_host: 0,
      docker_data_mib: null,
      ports: [],
      egress_policy: null,
      persistent: true,
      spot: false,
      env: { A: '1' },
      root: { type: 'builtin', name: 'busybox' },
      image_ref: 'busybox',
    },
    source: { kind: 'image' },
    ids,
    deadlineMs: 60_000,
  });
  return ids.id;
}

it('are placed and run like others, with their environment', async () => {
  await using runner = await world.runner();
  const id = await ofService();
  const assignment = await runner.assigned(id);
  assert.deepEqual(
    [assignment.desired, assignment.spec.name, assignment.spec.env],
    ['running', 'instance', { A: '1' }],
  );
  await until(async () => (await inspect(world.database, { uuid: id })).status === 'running');

  const mine = await create(world.call, world);
  await waitFor(world.call, mine.id, 'running');
  const { body } = await world.call('GET', '/vms');
  assert.deepEqual(
    body.vms.map((vm: { id: string }) => vm.id),
    [mine.id],
    'no tenant lists them',
  );
  const shown = formatSandboxId(REGION, id);
  for (const [method, path, sent] of [
    ['GET', `/vms/${shown}`],
    ['GET', `/vms/${id}`],
    ['DELETE', `/vms/${shown}`],
    ['POST', `/vms/${shown}/stop`],
    ['POST', `/vms/${shown}/start`],
    ['POST', `/vms/${shown}/fork`],
    ['POST', `/vms/${shown}/snapshots`, { name: 'shot', kind: 'full' }],
    ['GET', `/vms/${shown}/logs`],
  ] as const) {
    const answer = await world.call(method, path, sent);
    assert.equal(answer.status, 404, `${method} ${path}: ${answer.text}`);
    assert.match(answer.body.error, /not found/);
  }
});
