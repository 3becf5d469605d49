/** `DELETE /operator/hosts/:id`: what an operator does with a host that will not come back. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { RUNNER_LINK_PATH, type SandboxStatus } from '@releap/contract';
import {
  inspectSandboxes,
  inspectSnapshots,
  isTornDown,
  type InspectedSandbox,
} from '@releap/testing/inspect';
import { credentialOf, joinAs } from '@releap/testing/credentials';
import { startSignedInWorld } from '@releap/testing/issuer';
import {
  create,
  lose as disconnectLost,
  obedient,
  startWorld,
  until,
  waitFor,
  hosts,
  type Answer,
  type World,
} from '@releap/testing/world';
import { WebSocket } from 'ws';
import { Stage } from './support/lifecycle.ts';
import { Shots } from './support/snapshots.ts';

let world: World;
let stage: Stage;
beforeEach(async () => {
  world = await startWorld();
  // As if another server ran it, which does not: it would release a part of what a call is asked to.
  await world.database.pool.query(
    `insert into task_leases (name, holder, expires_at) values ('forgotten-hosts', gen_random_uuid(), now() + interval '1 hour')
     on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at`,
  );
  stage = await Stage.on(world, { facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
});
afterEach(async () => world[Symbol.asyncDispose]());

const forget = (id = stage.runner.id): Promise<Answer> => world.operator('DELETE', `/operator/hosts/${id}`);

/** As if it had been silent for longer than the deadline. */
async function lose(on: World = world, runner = stage.runner): Promise<void> {
  await disconnectLost(on, runner);
  await on.database.pool.query(
    `update runners set last_seen_at = now() - interval '2 minutes' where id = $1`,
    [runner.id],
  );
}

/** What the link answers to the upgrade. */
async function dial(credential: string): Promise<number | undefined> {
  const socket = new WebSocket(world.internalUrl.replace('http', 'ws') + RUNNER_LINK_PATH, {
    headers: { authorization: `Bearer ${credential}` },
  });
  return new Promise((resolve) => {
    socket.on('unexpected-response', (_request, response) => resolve(response.statusCode));
    socket.on('error', () => undefined);
    socket.on('open', () => {
      socket.terminate();
      resolve(101);
    });
  });
}

describe('a host that is forgotten', () => {
  it('releases its sandboxes, whatever their status: failed with the reason, deleting ones deleted', async () => {
    const forced = ['assigned', 'building', 'booting', 'stopping', 'pausing', 'lost'] as const;
    const live: [Awaited<ReturnType<Stage['running']>>, SandboxStatus][] = [];
    for (const status of forced) live.push([await stage.running(), status]);
    const running = await stage.running();
    const ephemeral = await stage.running({ persistent: false });
    const stopped = await stage.stopped();
    const paused = await stage.paused();
    const failed = await stage.running();
    await stage.report(failed, 'failed', { error: 'of its own' });
    const [deleting, deleted] = [await stage.running(), await stage.stopped()];
    await world.call('DELETE', `/vms/${deleting.id}`);
    await world.call('DELETE', `/vms/${deleted.id}`);
    await lose();
    for (const [vm, status] of live) await stage.force(vm, status);
    assert.equal((await stage.row(deleting)).status, 'deleting');
    assert.equal((await stage.row(deleted)).assigned_to_runner, true);

    const answer = await forget();
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(
      [answer.body.host_id, answer.body.sandboxes, answer.body.snapshots],
      [stage.runner.id, live.length + 7, 0],
    );
    for (const vm of [...live.map(([one]) => one), running, ephemeral, stopped, paused]) {
      const row = await stage.row(vm);
      assert.deepEqual(
        [row.status, row.desired, row.assigned_to_runner, row.error],
        ['failed', 'deleted', false, `its host ${stage.runner.id} was forgotten by the operator`],
      );
      const { body } = await world.call('GET', `/vms/${vm.id}`);
      assert.deepEqual([body.status, body.error], ['failed', row.error]);
    }
    const own = await stage.row(failed);
    assert.deepEqual([own.status, own.assigned_to_runner, own.error], ['failed', false, 'of its own']);
    for (const vm of [deleting, deleted]) {
      const row = await stage.row(vm);
      assert.deepEqual([row.status, row.desired, row.assigned_to_runner], ['deleted', 'deleted', false]);
    }
    // What has failed is deleted as ever.
    assert.equal((await world.call('DELETE', `/vms/${running.id}`)).status, 200);
    assert.equal((await stage.row(running)).status, 'deleted');
  });

  it('releases more than one batch', async () => {
    const vm = await stage.stopped();
    const { rows } = await world.database.pool.query<{ columns: string }>(
      `select string_agg(quote_ident(column_name), ', ') as columns from information_schema.columns
        where table_schema = current_schema() and table_name = 'sandboxes'
          and column_name not in ('id', 'job_id') and is_generated = 'NEVER'`,
    );
    const columns = rows[0]?.columns ?? '';
    await world.database.pool.query(
      `insert into sandboxes (id, job_id, ${columns})
       select gen_random_uuid(), gen_random_uuid(), ${columns}
         from sandboxes, generate_series(1, 450) where id = $1`,
      [vm.uuid],
    );
    await lose();
    assert.equal((await forget()).body.sandboxes, 451);
  });

  it('fails its snapshots, taken or not, and releases deleted ones', async () => {
    const shots = new Shots(world, stage);
    const vm = await shots.ephemeral();
    const ready = await shots.taken(vm);
    const gone = await shots.taken(await shots.ephemeral());
    stage.runner.options.snapshot = () => undefined;
    await shots.remove(gone.id);
    const pending = await shots.pending(vm);
    const waiting = await shots.pending(vm);
    await lose();
    const answer = await forget();
    assert.equal(answer.status, 200, answer.text);
    for (const { id } of [ready, pending, waiting]) {
      await until(async () => (await shots.read(id)).status === 'failed');
      assert.match((await shots.read(id)).error, /its host \S+ was forgotten by the operator$/);
    }
    const job = (await world.call('GET', `/jobs/${pending.job_id}`)).body;
    assert.equal(job.status, 'failed');
    assert.ok(!(await inspectSnapshots(world.database)).some((row) => row.assigned_to_runner));
  });

  it('gives its builds to another host at once', async () => {
    // Silent, so that only the lease says who builds.
    stage.runner.options.build = () => undefined;
    const image = await world.call('POST', '/images', {
      name: 'mine',
      source: { type: 'registry', ref: 'debian:12' },
    });
    await until(() => Promise.resolve(stage.runner.builds.some((job) => job.job_id === image.body.job_id)));
    await lose();
    await world.database.pool.query(
      `update jobs set lease_until = now() + interval '1 hour' where kind = 'build' and status = 'running'`,
    );
    assert.ok((await forget()).body.builds >= 1);
    const other = await world.runner();
    await until(() => Promise.resolve(other.builds.some((job) => job.job_id === image.body.job_id)));
  });

  it('leaves the list, and takes nothing more: its credential and the join token open nothing for its id', async () => {
    const { id } = stage.runner;
    await lose();
    assert.equal((await hosts(world)).length, 1);
    assert.equal((await forget()).status, 200);
    assert.deepEqual(await hosts(world), []);
    assert.equal(await dial(credentialOf(id)), 401);
    assert.equal((await joinAs(world.internalUrl, id, { token: credentialOf(id) })).status, 401);
    assert.equal((await joinAs(world.internalUrl, id, { credential: 'another one' })).status, 409);
    for (const verb of ['drain', 'undrain', 'evict', 'join-permission'])
      assert.equal((await world.operator('POST', `/operator/hosts/${id}/${verb}`)).status, 404, verb);
    // Other hosts are not touched by it.
    await world.runner({ script: obedient });
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await hosts(world)).length, 1);
  });

  it('is forgotten once: again it is 200 and changes nothing, and finishes what was interrupted', async () => {
    const [one, two] = [await stage.stopped(), await stage.stopped()];
    await lose();
    const first = (await forget()).body;
    assert.equal(first.sandboxes, 2);
    const before = await stage.row(one);
    const again = await forget();
    assert.deepEqual([again.status, again.body], [200, { ...first, sandboxes: 0, snapshots: 0, builds: 0 }]);
    assert.deepEqual(await stage.row(one), before);
    await world.database.pool.query(`update sandboxes set held = true, status = 'stopped' where id = $1`, [
      two.uuid,
    ]);
    assert.equal((await forget()).body.sandboxes, 1);
    assert.deepEqual(
      [(await stage.row(two)).status, (await stage.row(two)).assigned_to_runner],
      ['failed', false],
    );
  });

  it('no longer holds up the deletion of a project that has sandboxes there', async () => {
    await using mine = await startSignedInWorld({ limits: { teardownGraceMs: 0 } });
    const runner = await mine.runner({ facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
    const owner = await mine.as('owner');
    const { projectId, key } = await mine.tenant(owner);
    const vm = await create(key, mine, { persistent: true });
    await waitFor(key, vm.id, 'running');
    await lose(mine, runner);
    await owner('DELETE', `/projects/${projectId}`);
    const tornDown = (): Promise<boolean> => isTornDown(mine.database, projectId);
    const only = async (): Promise<InspectedSandbox | undefined> =>
      (await inspectSandboxes(mine.database, { project_id: projectId }))[0];
    await until(async () => ['deleting', 'deleted'].includes((await only())?.status ?? ''));
    assert.equal((await only())?.assigned_to_runner, true);
    assert.equal(await tornDown(), false);
    assert.equal((await mine.operator('DELETE', `/operator/hosts/${runner.id}`)).status, 200);
    // It is tried again half a minute after the last time.
    await mine.database.pool.query('update projects set teardown_after = now() where id = $1', [projectId]);
    await until(tornDown);
  });
});

describe('DELETE /operator/hosts/:id', () => {
  it('409 with the reason for a host that is online, or away but not lost yet; nothing has changed', async () => {
    const vm = await stage.stopped();
    const before = await stage.row(vm);
    const online = await forget();
    assert.equal(online.status, 409);
    assert.match(
      online.body.error,
      new RegExp(
        `^host ${stage.runner.id} is online, last heard from at 20\\S+: only a lost one, not heard from for 60 s, can be forgotten$`,
      ),
    );
    stage.runner.drop();
    await until(async () => (await hosts(world))[0]?.status === 'offline');
    assert.match((await forget()).body.error, /is offline/);
    assert.deepEqual(await stage.row(vm), before);
    await stage.runner.connect();
    await until(async () => (await hosts(world))[0]?.ready === true);
  });

  it('404 for a host that was never seen; 401 without the operator token', async () => {
    for (const id of ['nonsense', randomUUID()]) {
      const answer = await forget(id);
      assert.deepEqual([answer.status, answer.body.error], [404, `host "${id}" not found`]);
    }
    assert.equal((await world.gateway('DELETE', `/operator/hosts/${stage.runner.id}`)).status, 401);
  });

  it('is in the audit log of the operator, done and refused', async () => {
    const { id } = stage.runner;
    await forget();
    await lose();
    await forget();
    const { entries } = (await world.operator('GET', '/operator/audit')).body;
    const all = (entries as { operation: string; subject: string; outcome: string; error: string | null }[])
      .filter(({ operation }) => operation === 'forgetHost')
      .map(({ subject, outcome, error }) => [subject, outcome, error === null]);
    assert.deepEqual(all, [
      [id, 'done', true],
      [id, 'refused', false],
    ]);
  });
});

describe('POST /operator/vms/:id/evict', () => {
  it('evicts one spot sandbox, by its id or UUID, wherever it is; 409 when it cannot be, 404 when no host has it', async () => {
    const evict = (id: string): Promise<Answer> => world.operator('POST', `/operator/vms/${id}/evict`);
    const [kept, ended, dear] = [
      await stage.running({ spot: true }),
      await stage.running({ spot: true, persistent: false }),
      await stage.running(),
    ];
    assert.deepEqual((await evict(kept.id)).body, {
      evicted: [{ vm_id: kept.id, status: 'pausing' }],
      remaining: [],
    });
    assert.deepEqual((await evict(ended.uuid)).body.evicted, [{ vm_id: ended.id, status: 'deleting' }]);
    const refused = await evict(dear.id);
    assert.deepEqual(
      [refused.status, refused.body.error],
      [409, `sandbox "${dear.id}" cannot be evicted: it is not in the spot tier`],
    );
    for (const id of ['nonsense', randomUUID()]) assert.equal((await evict(id)).status, 404);
  });
});
