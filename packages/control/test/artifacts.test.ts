/** Artifacts in the control plane: uploads, placement, replication, removal, and what a runner may do with the store. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { ArtifactAssignment } from '@releap/contract/runner';
import {
  create,
  host,
  lose,
  obedient,
  quiet,
  startWorld,
  until,
  waitFor,
  type Created,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';
import { createEventBus } from '../src/platform/events/event-bus.ts';
import { createVersionStates } from '../src/functions/versions/version-states.ts';
import { ask as askStore, digestOf, PARTS, reportStored, upload as uploadTo } from './support/artifacts.ts';

let world: World;
beforeEach(async () => {
  world = await startWorld({ builtinImages: [] });
  // Before a request: a server remembers the regions for a while.
  await world.database.pool.query(`insert into regions (id, name) values ('there', 'There')`);
});
afterEach(() => world[Symbol.asyncDispose]());

const image = { image: 'localhost:5000/app:1' };
const ask = (runner: ScriptedRunner, ...request: [method: string, path: string, body?: string]) =>
  askStore(world, runner, ...request);
const upload = (runner: ScriptedRunner, at: ArtifactAssignment, parts: Record<string, string>) =>
  uploadTo(world, runner, at, parts);

const stored = async (id: string): Promise<boolean> =>
  (await world.database.pool.query('select 1 from artifacts where id = $1 and stored_at is not null', [id]))
    .rowCount === 1;

/** A sandbox on this runner, and a disk snapshot of it. */
async function snapshotOn(runner: ScriptedRunner, name = 'snap'): Promise<{ id: string; vm: Created }> {
  const vm = await create(world.call, world, image);
  await waitFor(world.call, vm.id, 'running');
  const answer = await world.call('POST', `/vms/${vm.id}/snapshots`, { name });
  assert.equal(answer.status, 200, answer.text);
  const { id } = answer.body;
  await until(async () => (await world.call('GET', `/snapshots/${id}`)).body.status === 'ready');
  assert.equal((await runner.assigned(vm.uuid)).vm_id, vm.uuid);
  return { id, vm };
}

/** As if it had been silent for longer than hosts may be. */
async function loseForLong(runner: ScriptedRunner): Promise<void> {
  await lose(world, runner);
  await world.database.pool.query(
    `update runners set last_seen_at = now() - interval '1 hour' where id = $1`,
    [runner.id],
  );
}

/** A second host, and the snapshot of the first one uploaded. */
async function replicated(): Promise<{ home: ScriptedRunner; other: ScriptedRunner; id: string }> {
  const home = await world.runner();
  const { id } = await snapshotOn(home);
  const other = await world.runner();
  const assignment = await home.artifactAssigned(id, ({ desired }) => desired === 'stored');
  await upload(home, assignment, PARTS);
  assert.equal(await stored(id), true);
  return { home, other, id };
}

describe('uploads', () => {
  it('copies nothing while there is one host, and a disk snapshot as soon as there are two', async () => {
    const home = await world.runner();
    const { id } = await snapshotOn(home);
    await world.control.runTask('artifacts');
    assert.equal(home.artifacts.size, 0);
    await world.runner();
    const assignment = await home.artifactAssigned(id, ({ desired }) => desired === 'stored');
    assert.equal(await stored(id), false);
    await upload(home, assignment, PARTS);
    assert.equal(await stored(id), true);
  });

  it('does not ask a host for one that has no part in the protocol of artifacts', async () => {
    const home = await world.runner({ hello: { kinds: ['sandbox', 'snapshot', 'build'] } });
    await snapshotOn(home);
    await world.runner();
    await world.runner();
    await world.control.runTask('artifacts');
    assert.equal(home.artifacts.size, 0);
  });

  it('asks again when an upload has failed, and when a reported part is not in the store', async () => {
    const home = await world.runner();
    const { id } = await snapshotOn(home);
    await world.runner();
    const first = await home.artifactAssigned(id, ({ desired }) => desired === 'stored');
    home.report({
      kind: 'artifact',
      id: first.id,
      generation: first.generation,
      status: 'failed',
      detail: { error: 'the network is down' },
    });
    const due = (): Promise<unknown> =>
      world.database.pool.query('update artifact_locations set retry_at = now() where retry_at is not null');
    const next = async (after: number): Promise<ArtifactAssignment> => {
      await until(async () => {
        await due();
        await world.control.runTask('artifacts');
        return [...home.artifacts.values()].some(
          ({ desired, generation }) => desired === 'stored' && generation > after,
        );
      });
      return home.artifactAssigned(id, ({ generation }) => generation > after);
    };
    const second = await next(first.generation);
    await reportStored(home, second, PARTS);
    assert.equal(await stored(id), false);
    const third = await next(second.generation);
    await upload(home, third, PARTS);
    assert.equal(await stored(id), true);
  });

  it('does not take parts on the word of a host that has not uploaded them', async () => {
    const { home, other } = await replicated();
    const stranger = await world.stranger();
    const vm = await create(stranger, world, image);
    await waitFor(stranger, vm.id, 'running');
    const host = [home, other].find((one) => one.assignments.has(vm.uuid));
    assert.ok(host);
    const answer = await stranger('POST', `/vms/${vm.id}/snapshots`, { name: 'thief' });
    const assignment = await host.artifactAssigned(answer.body.id, ({ desired }) => desired === 'stored');
    // The store has these blobs, of another project.
    const listed = await ask(
      host,
      'POST',
      `/internal/artifact-locations/${assignment.id}/missing`,
      JSON.stringify({ digests: Object.values(PARTS).map(digestOf) }),
    );
    assert.deepEqual(
      ((await listed.json()) as { missing: string[] }).missing,
      Object.values(PARTS).map(digestOf),
    );
    await reportStored(host, assignment, PARTS);
    assert.equal(await stored(answer.body.id), false);
  });

  it('asks for no part that an artifact of the same project has', async () => {
    const { home, id } = await replicated();
    const answer = await world.call(
      'POST',
      `/vms/${(await world.call('GET', '/vms')).body.vms[0].id}/snapshots`,
      { name: 'second' },
    );
    const assignment = await home.artifactAssigned(answer.body.id, ({ desired }) => desired === 'stored');
    const parts = { ...PARTS, 'layer-1.qcow2': 'another layer' };
    const listed = await ask(
      home,
      'POST',
      `/internal/artifact-locations/${assignment.id}/missing`,
      JSON.stringify({ digests: Object.values(parts).map(digestOf) }),
    );
    assert.deepEqual(((await listed.json()) as { missing: string[] }).missing, [digestOf('another layer')]);
    await upload(home, assignment, { 'layer-1.qcow2': 'another layer' }).catch(() => undefined);
    assert.equal(await stored(id), true);
  });
});

describe('placement', () => {
  it('prefers the host that has the snapshot, and restores on another one when that is gone', async () => {
    const { home, other, id } = await replicated();
    const near = await create(world.call, world, { image: { type: 'snapshot', name: 'snap' } });
    await waitFor(world.call, near.id, 'running');
    assert.equal((await home.assigned(near.uuid)).vm_id, near.uuid);
    assert.equal(other.artifacts.size, 0);
    await loseForLong(home);
    const far = await create(world.call, world, { image: { type: 'snapshot', name: 'snap' } });
    const fetched = await other.artifactAssigned(id, ({ desired }) => desired === 'present');
    assert.equal((await other.assigned(far.uuid)).vm_id, far.uuid);
    assert.equal(fetched.spec.type, 'snapshot');
    await waitFor(world.call, far.id, 'running');
    const parts = await ask(other, 'GET', `/internal/artifacts/${id}`);
    assert.deepEqual(
      ((await parts.json()) as { parts: { name: string }[] }).parts.map(({ name }) => name),
      Object.keys(PARTS).sort(),
    );
    const blob = await ask(other, 'GET', `/internal/blobs/${digestOf('a layer')}`);
    assert.equal(await blob.text(), 'a layer');
  });

  it('refuses a restore on another host as long as the snapshot is not in the store', async () => {
    const home = await world.runner();
    await snapshotOn(home);
    await loseForLong(home);
    await world.runner({ artifact: () => undefined });
    const answer = await world.call('POST', '/vms', { image: { type: 'snapshot', name: 'snap' } });
    assert.equal(answer.status, 409);
    assert.match(answer.body.error, /has not been heard from/);
  });

  it('answers 409 in another region until the snapshot is in the store, and restores it there then', async () => {
    const home = await world.runner();
    const { id } = await snapshotOn(home);
    const there = await world.runner({ region: 'there' });
    const body = { image: { type: 'snapshot', name: 'snap' }, region: 'there' };
    const early = await world.call('POST', '/vms', body);
    assert.equal(early.status, 409, early.text);
    assert.match(early.body.error, /still replicating into the region "there"/);
    const assignment = await home.artifactAssigned(id, ({ desired }) => desired === 'stored');
    await upload(home, assignment, PARTS);
    const vm = await create(world.call, world, body);
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await there.assigned(vm.uuid)).spec.origin?.type, 'snapshot');
  });
});

describe('an image that was built from a Dockerfile', () => {
  it('is used on the host that built it, and in another region once it is in the store', async () => {
    const builder = await world.runner({ hello: { capabilities: ['dockerfile-builds'] } });
    const posted = await world.call('POST', '/images', {
      name: 'built',
      source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
    });
    assert.equal(posted.status, 200, posted.text);
    await until(async () => (await world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done');
    const there = await world.runner({ region: 'there' });
    const early = await world.call('POST', '/vms', { image: 'built', region: 'there' });
    assert.equal(early.status, 409, early.text);
    assert.match(early.body.error, /image "built" is still replicating into the region "there"/);
    const here = await create(world.call, world, { image: 'built' });
    assert.equal((await builder.assigned(here.uuid)).vm_id, here.uuid);
    const { rows } = await world.database.pool.query<{ id: string }>(
      `select id from artifacts where kind = 'image'`,
    );
    const id = rows[0]?.id ?? '';
    const assignment = await builder.artifactAssigned(id, ({ desired }) => desired === 'stored');
    await upload(builder, assignment, { 'config.json': '{}', 'root.squashfs': 'a root image' });
    // It stays assigned to the builder, whose cache must not evict it.
    await builder.artifactAssigned(id, ({ desired }) => desired === 'present');
    const vm = await create(world.call, world, { image: 'built', region: 'there' });
    assert.equal((await there.assigned(vm.uuid)).spec.root.type, 'stored');
    const fetched = await there.artifactAssigned(id, ({ desired }) => desired === 'present');
    const parts = await ask(there, 'GET', `/internal/artifacts/${fetched.spec.digest}`);
    assert.equal(parts.status, 200);

    // A function that was deployed from it needs it until a version after that is the current one.
    const deploy = (from: string) =>
      world.call('POST', '/fns', { name: 'needs-it', image: from, activate: 'when_ready' });
    const deployed = await deploy('built');
    assert.equal(deployed.status, 200, deployed.text);
    // Its try has a sandbox, which needs the image too.
    await until(
      async () =>
        (await world.call('GET', '/fns/needs-it')).body.current_version?.template_state === 'published',
    );
    assert.equal((await world.call('DELETE', '/images/built')).status, 204);
    for (const { id: vmId } of [here, vm]) {
      await world.call('DELETE', `/vms/${vmId}`);
      await waitFor(world.call, vmId, 'deleted');
    }
    await until(
      async () => (await world.database.pool.query('select 1 from sandboxes where held')).rowCount === 0,
    );
    const isNeeded = async (): Promise<boolean> => {
      await world.control.runTask('artifact-audit');
      const { rowCount } = await world.database.pool.query(
        'select 1 from artifacts where id = $1 and unneeded_since is null',
        [id],
      );
      return rowCount === 1;
    };
    assert.equal(await isNeeded(), true);
    // No handler listens from here on, so that the next version stays pending.
    for (const runner of [builder, there])
      runner.options.script = (assignment, self) => {
        self.deaf.add(assignment.vm_id);
        return obedient(assignment, self);
      };
    const next = await deploy('localhost:5000/app:2');
    assert.equal(await isNeeded(), true);
    const states = createVersionStates(world.database, createEventBus(quiet));
    await states.publish(next.body.version_id);
    await until(async () => !(await isNeeded()));
  });
});

describe('an image that was built in two regions', () => {
  it('is used in both before it is stored', async () => {
    const options = { hello: { capabilities: ['dockerfile-builds'] } };
    const runners = {
      here: await world.runner(options),
      there: await world.runner({ ...options, region: 'there' }),
    };
    for (const region of ['here', 'there'] as const) {
      const posted = await world.call('POST', '/images', {
        name: `built-${region}`,
        source: { type: 'dockerfile', dockerfile: 'FROM scratch' },
        region,
      });
      assert.equal(posted.status, 200, posted.text);
      await until(
        async () => (await world.call('GET', `/jobs/${posted.body.job_id}`)).body.status === 'done',
      );
    }
    await until(async () => {
      await world.control.runTask('artifacts');
      return (await world.database.pool.query('select 1 from artifact_locations')).rowCount === 2;
    });
    for (const region of ['here', 'there'] as const) {
      const vm = await create(world.call, world, { image: `built-${region}`, region });
      assert.equal((await runners[region].assigned(vm.uuid)).vm_id, vm.uuid);
      await waitFor(world.call, vm.id, 'running');
    }
    const { rows } = await world.database.pool.query('select stored_at from artifacts');
    assert.deepEqual(rows, [{ stored_at: null }]);
  });
});

describe('removal', () => {
  it('removes a deleted snapshot from the hosts that fetched it, and its blobs after their grace period', async () => {
    const { home, other, id } = await replicated();
    home.options.ready = false;
    home.heartbeat(false);
    await until(async () => (await host(world, home.id))?.ready === false);
    const vm = await create(world.call, world, { image: { type: 'snapshot', name: 'snap' } });
    await other.artifactAssigned(id, ({ desired }) => desired === 'present');
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await world.call('DELETE', `/snapshots/${id}`)).status, 200);
    await world.control.runTask('artifact-garbage');
    await other.artifactAssigned(id, ({ desired }) => desired === 'deleted');
    await until(async () => {
      await world.control.runTask('artifact-garbage');
      return (await world.database.pool.query('select 1 from artifacts')).rowCount === 0;
    });
    await world.database.pool.query(`update blobs set touched_at = now() - interval '2 days'`);
    await world.control.runTask('blob-garbage');
    assert.equal((await world.database.pool.query('select 1 from blobs')).rowCount, 0);
  });

  it('keeps the blobs of a snapshot that is there, however old', async () => {
    const { id } = await replicated();
    await world.database.pool.query(`update blobs set touched_at = now() - interval '9 days'`);
    await world.control.runTask('blob-garbage');
    assert.equal(
      (await world.database.pool.query('select 1 from blobs')).rowCount,
      Object.keys(PARTS).length,
    );
    assert.equal(await stored(id), true);
  });

  it('keeps a stored snapshot whose host is forgotten, and restores it elsewhere', async () => {
    const { home, other, id } = await replicated();
    await loseForLong(home);
    const forgotten = await world.operator('DELETE', `/operator/hosts/${home.id}`);
    assert.equal(forgotten.status, 200, forgotten.text);
    assert.equal((await world.call('GET', `/snapshots/${id}`)).body.status, 'ready');
    const vm = await create(world.call, world, { image: { type: 'snapshot', name: 'snap' } });
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await other.assigned(vm.uuid)).vm_id, vm.uuid);
  });
});

describe('a runner and the store', () => {
  it('writes only what it was told to store, and nothing else under that digest', async () => {
    const home = await world.runner();
    const { id } = await snapshotOn(home);
    const other = await world.runner({ script: obedient });
    const assignment = await home.artifactAssigned(id, ({ desired }) => desired === 'stored');
    const path = `/internal/blobs/${digestOf('mine')}?location=${assignment.id}`;
    assert.equal((await ask(other, 'PUT', path, 'mine')).status, 404);
    const wrong = await ask(home, 'PUT', path, 'another content');
    assert.equal(wrong.status, 400);
    assert.match(await wrong.text(), /the content has the digest/);
    assert.equal((await ask(home, 'GET', `/internal/blobs/${digestOf('mine')}`)).status, 404);
    assert.equal((await ask(home, 'PUT', path, 'mine')).status, 204);
    assert.equal((await ask(home, 'PUT', path, 'mine')).status, 204);
    await upload(home, assignment, PARTS);
    // The upload has ended.
    assert.equal((await ask(home, 'PUT', path, 'mine')).status, 404);
  });

  it('reads only artifacts that it is to have', async () => {
    const { other, id } = await replicated();
    assert.equal((await ask(other, 'GET', `/internal/artifacts/${id}`)).status, 404);
    assert.equal((await ask(other, 'GET', `/internal/blobs/${digestOf('a layer')}`)).status, 404);
  });
});
