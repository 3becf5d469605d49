import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { pino } from 'pino';
import { createTeardown } from '../src/platform/teardown/teardown.ts';
import {
  inspectSandboxes,
  inspectSnapshots,
  isTornDown,
  tablesWith,
  inspectApiKeys,
} from '@releap/testing/inspect';
import { credentialOf } from '@releap/testing/credentials';
import { startSignedInWorld, type Person, type SignedInWorld } from '@releap/testing/issuer';
import { create, silent, until, waitFor } from '@releap/testing/world';
import { GatewayClient } from '@releap/testing/gateway-client';

describe('the deletion of a project', () => {
  let world: SignedInWorld;
  let owner: Person;
  before(async () => {
    world = await startSignedInWorld({ limits: { teardownGraceMs: 0 } });
    owner = await world.as('owner');
  });
  after(() => world[Symbol.asyncDispose]());

  const tornDown = (projectId: string): Promise<boolean> => isTornDown(world.database, projectId);
  const isGone = (row: { status: string; assigned_to_runner: boolean }): boolean =>
    row.status === 'deleted' && !row.assigned_to_runner;
  const count = async (sql: string, id: string): Promise<number> =>
    (await world.database.pool.query<{ n: number }>(`select count(*)::integer as n from ${sql}`, [id]))
      .rows[0]?.n ?? -1;

  test('is told to a runner that asks for it, and no other project is', async () => {
    await using runner = await world.runner();
    const [gone, stays] = [await world.tenant(owner), await world.tenant(owner)];
    const unknown = '00000000-0000-4000-8000-000000000000';
    const ask = async (authorization: string): Promise<Response> =>
      await fetch(`${world.internalUrl}/internal/projects/deleted`, {
        method: 'POST',
        headers: { authorization, 'content-type': 'application/json' },
        body: JSON.stringify({ projects: [gone.projectId, stays.projectId, unknown] }),
      });
    assert.equal((await owner('DELETE', `/projects/${gone.projectId}`)).status, 200);
    const answer = await ask(`Bearer ${credentialOf(runner.id)}`);
    assert.deepEqual([answer.status, await answer.json()], [200, { deleted: [gone.projectId] }]);
    assert.equal((await ask('Bearer x')).status, 401);
  });

  test('takes away sandboxes on their hosts, images, builds and keys, and leaves no trace of environments', async () => {
    const runner = await world.runner({ build: () => undefined });
    await using _ = runner;
    const { projectId, key } = await world.tenant(owner);
    const running = await create(key, world, { env: { PASSWORD: 'hunter2' } });
    const stopped = await create(key, world, { persistent: true });
    await waitFor(key, running.id, 'running');
    await waitFor(key, stopped.id, 'running');
    await key('POST', `/vms/${stopped.id}/stop`);
    await waitFor(key, stopped.id, 'stopped');
    const image = await key('POST', '/images', {
      name: 'mine',
      source: { type: 'registry', ref: 'debian:12' },
    });
    assert.equal(image.status, 200, image.text);

    assert.deepEqual((await owner('DELETE', `/projects/${projectId}`)).body, { deleted: projectId });
    // Gone for every caller at once.
    assert.equal((await key('GET', '/vms')).status, 401);
    assert.equal((await owner('DELETE', `/projects/${projectId}`)).status, 404);
    assert.equal((await owner('GET', `/projects/${projectId}/api-keys`)).status, 404);
    assert.equal((await owner('POST', `/projects/${projectId}/api-keys`)).status, 404);
    using gateway = await new GatewayClient(world.internalUrl).open();
    assert.equal((await gateway.refusal(running.id, running.token)).status, 401);

    await until(() => tornDown(projectId));
    assert.equal(runner.assignments.get(running.uuid)?.desired, 'deleted');
    assert.equal(runner.assignments.get(stopped.uuid)?.desired, 'deleted');
    const sandboxes = await inspectSandboxes(world.database, { project_id: projectId });
    assert.deepEqual(sandboxes.map(isGone), [true, true]);
    assert.deepEqual(await tablesWith(world.database, 'hunter2'), []);
    assert.equal(await count('images where project_id = $1', projectId), 0);
    assert.equal(await count(`jobs where project_id = $1 and status in ('queued', 'running')`, projectId), 0);
    const keys = await inspectApiKeys(world.database, { project_id: projectId });
    assert.ok(keys.every((one) => one.revoked_at !== null));
  });

  test('takes away snapshots, those that descend from others first', async () => {
    const runner = await world.runner();
    await using _ = runner;
    const { projectId, key } = await world.tenant(owner);
    const sandbox = await create(key, world, { env: { PASSWORD: 'hunter2' } });
    await waitFor(key, sandbox.id, 'running');
    const ids: string[] = [];
    for (const name of ['first', 'second', 'third']) {
      const { body } = await key('POST', `/vms/${sandbox.id}/snapshots`, { name });
      ids.push(body.id);
      assert.equal((await key('GET', `/snapshots/${body.id}?wait=ready`)).body.status, 'ready');
    }
    const removed: string[] = [];
    runner.options.snapshot = (assignment) => {
      if (assignment.desired !== 'deleted') return;
      removed.push(assignment.snapshot_id);
      runner.observeSnapshot(assignment, { status: 'deleted' });
    };
    await owner('DELETE', `/projects/${projectId}`);
    await until(() => tornDown(projectId));
    assert.deepEqual([...new Set(removed)], ids.toReversed());
    const snapshots = await inspectSnapshots(world.database, { project_id: projectId });
    assert.deepEqual(snapshots.map(isGone), [true, true, true]);
    assert.deepEqual(await tablesWith(world.database, 'hunter2'), []);
  });

  test('waits for a host that does not answer, and continues after a restart of the server', async () => {
    const runner = await world.runner({ script: silent });
    await using _ = runner;
    const { projectId, key } = await world.tenant(owner);
    const sandbox = await create(key, world);
    const assignment = await runner.assigned(sandbox.uuid);
    runner.observe(assignment, {
      status: 'running',
      vm_ip: '172.16.0.2',
      host_ip: '127.0.0.1',
      port_map: [],
    });
    await waitFor(key, sandbox.id, 'running');
    await owner('DELETE', `/projects/${projectId}`);
    const last = await runner.assigned(sandbox.uuid, (one) => one.desired === 'deleted');
    await world.control.sweep();
    assert.equal(await tornDown(projectId), false);
    await world.restart();
    await until(async () => runner.closeCode !== undefined);
    await runner.connect();
    assert.equal(await tornDown(projectId), false);
    runner.observe(last, { status: 'deleted' });
    await until(() => tornDown(projectId));
  });

  test('takes what is created while it is deleted', async () => {
    await world.restart({ limits: { teardownGraceMs: 3_600_000 } });
    const runner = await world.runner({ facts: { cores: 64, mem_mib: 500_000, disk_mib: 500_000 } });
    await using _ = runner;
    const { projectId, key } = await world.tenant(owner);
    const creating = Array.from({ length: 30 }, () => key('POST', '/vms', { image: 'busybox' }));
    const deleting = owner('DELETE', `/projects/${projectId}`);
    const answers = await Promise.all(creating);
    assert.equal((await deleting).status, 200);
    // 503: it waited for too long for a connection to the database, and may be made or not.
    assert.ok(answers.every(({ status }) => [200, 401, 503].includes(status)));
    const answered = (wanted: number): number => answers.filter(({ status }) => status === wanted).length;
    const sandboxes = () => inspectSandboxes(world.database, { project_id: projectId });
    await until(async () => (await sandboxes()).every(isGone));
    assert.equal(await tornDown(projectId), false);
    // All that were let in have been answered: its grace may be over.
    await world.database.pool.query(
      `update projects set deleted_at = deleted_at - interval '1 hour', teardown_after = now() where id = $1`,
      [projectId],
    );
    await until(() => tornDown(projectId));
    const made = await sandboxes();
    assert.ok(
      made.length >= answered(200) && made.length <= answered(200) + answered(503),
      `${made.length} were made`,
    );
    assert.ok(made.every(isGone));
    await world.restart();
  });

  test('of an organization takes all of its projects, members and invitations', async () => {
    const runner = await world.runner();
    await using _ = runner;
    const { orgId, projectId, key } = await world.tenant(owner);
    const second = await owner('POST', `/orgs/${orgId}/projects`, { name: 'second' });
    const invited = await owner('POST', `/orgs/${orgId}/invitations`, { email: 'guest@example.org' });
    const guest = await world.as('guest');
    const sandbox = await create(key, world);
    await waitFor(key, sandbox.id, 'running');
    assert.deepEqual((await owner('DELETE', `/orgs/${orgId}`)).body, { deleted: orgId });
    for (const path of [
      `/orgs/${orgId}`,
      `/orgs/${orgId}/projects`,
      `/orgs/${orgId}/audit`,
      `/projects/${projectId}/api-keys`,
    ]) {
      assert.equal((await owner('GET', path)).status, 404, path);
    }
    assert.ok(!(await owner('GET', '/orgs')).text.includes(orgId));
    assert.deepEqual((await guest('GET', '/invitations')).body, { invitations: [] });
    assert.equal((await guest('POST', `/invitations/${invited.body.id}/accept`)).status, 404);
    assert.equal((await key('GET', '/vms')).status, 401);
    await until(() => tornDown(projectId));
    await until(() => tornDown(second.body.id));
    assert.equal(runner.assignments.get(sandbox.uuid)?.desired, 'deleted');
    assert.equal(await count('members where org_id = $1', orgId), 0);
  });

  test('finds what a request that was let in before has written after it', async () => {
    const { projectId, key } = await world.tenant(owner);
    // The server's own grace is over at once here; that of this one is not.
    await owner('DELETE', `/projects/${projectId}`);
    await until(() => tornDown(projectId));
    await world.database.pool.query(
      'update projects set teardown_after = now(), torn_down_at = null where id = $1',
      [projectId],
    );
    await world.database.pool.query(
      `insert into images (id, project_id, name, source, status, job_id) values ($1, $2, 'late', '{}', 'ready', $1)`,
      [crypto.randomUUID(), projectId],
    );
    await until(() => tornDown(projectId));
    assert.equal(await count('images where project_id = $1', projectId), 0);
    assert.equal((await key('GET', '/vms')).status, 401);
  });

  test('is never over before the grace is, and a step that fails is tried again', async () => {
    const { projectId } = await world.tenant(owner);
    await world.control.close();
    const { pool } = world.database;
    await pool.query('update projects set deleted_at = now(), teardown_after = now() where id = $1', [
      projectId,
    ]);
    let failures = 0;
    const options = { database: world.database, log: pino({ level: 'silent' }) };
    const flaky = {
      name: 'flaky',
      phase: 'erase' as const,
      async run() {
        if (++failures < 3) throw new Error('not now');
        return 0;
      },
    };
    const due = (): Promise<unknown> =>
      pool.query('update projects set teardown_after = now() where id = $1 and teardown_after is not null', [
        projectId,
      ]);
    const impatient = createTeardown({ ...options, graceMs: 0, steps: [flaky] });
    const patient = createTeardown({ ...options, graceMs: 3_600_000, steps: [] });
    await patient.sweep();
    await due();
    await patient.sweep();
    assert.equal(await tornDown(projectId), false);
    for (let n = 0; n < 3; n++) {
      assert.equal(await tornDown(projectId), false);
      await due();
      await impatient.sweep();
    }
    assert.equal(await tornDown(projectId), true);
    await Promise.all([patient.close(), impatient.close()]);
  });
});

/** Its steps are the test's own: no server tears down beside it. */
describe('the passes of a teardown', () => {
  let world: SignedInWorld;
  let projects: string[];
  before(async () => {
    world = await startSignedInWorld({ builtinImages: [] });
    const owner = await world.as('owner');
    projects = [];
    for (let n = 0; n < 3; n++) projects.push((await world.tenant(owner)).projectId);
    await world.control.close();
  });
  after(() => world[Symbol.asyncDispose]());
  const tornDown = (projectId: string): Promise<boolean> => isTornDown(world.database, projectId);
  const nextProject = (): string => projects.pop() ?? assert.fail('no project is left');

  test('runs every step in each pass although one of them throws, and is not over before that one succeeds', async () => {
    const projectId = nextProject();
    const { pool } = world.database;
    const due = (): Promise<unknown> =>
      pool.query(
        'update projects set deleted_at = coalesce(deleted_at, now()), teardown_after = now() where id = $1',
        [projectId],
      );
    const runs = { broken: 0, after: 0 };
    let isBroken = true;
    const teardown = createTeardown({
      database: world.database,
      log: pino({ level: 'silent' }),
      graceMs: 0,
      steps: [
        {
          name: 'broken',
          phase: 'revoke',
          async run() {
            runs.broken++;
            if (isBroken) throw new Error('canceling statement due to statement timeout');
            return 0;
          },
        },
        {
          name: 'after',
          phase: 'erase',
          async run() {
            runs.after++;
            return 0;
          },
        },
      ],
    });
    for (const round of [1, 2]) {
      await due();
      await teardown.sweep();
      assert.deepEqual(runs, { broken: round, after: round });
      assert.equal(await tornDown(projectId), false);
    }
    isBroken = false;
    await due();
    await teardown.sweep();
    assert.equal(await tornDown(projectId), true);
    await teardown.close();
  });

  test('continues at once after a full batch, in one sweep, and beside a project that waits', async () => {
    const [large, other] = [nextProject(), nextProject()];
    const { pool } = world.database;
    await pool.query(
      `update projects set deleted_at = now() - interval '1 hour', teardown_after = now() where id = any($1::uuid[])`,
      [[large, other]],
    );
    let batches = 500;
    const otherIsDone = Promise.withResolvers<void>();
    const teardown = createTeardown({
      database: world.database,
      log: pino({ level: 'silent' }),
      graceMs: 0,
      steps: [
        {
          name: 'batches',
          phase: 'stop',
          async run(projectId) {
            if (projectId === other) {
              otherIsDone.resolve();
              return 0;
            }
            // One slow project does not keep the others from being torn down.
            if (batches === 1) await otherIsDone.promise;
            return batches-- > 0 ? 'more' : 0;
          },
        },
      ],
    });
    await teardown.sweep();
    assert.equal(await tornDown(large), true);
    assert.equal(await tornDown(other), true);
    await teardown.close();
  });
});

describe('the teardown steps of the modules', () => {
  test('erase many rows of one project in batches, and none of another', async () => {
    await using own = await startSignedInWorld({ limits: { teardownGraceMs: 0 } });
    const owner = await own.as('owner');
    const [gone, stays] = [await own.tenant(owner), await own.tenant(owner)];
    const { pool } = own.database;
    for (const { projectId } of [gone, stays]) {
      await pool.query(
        `insert into usage_hourly (hour, sandbox_id, project_id, region, runner_ids, duration_ms, cpu_usec, memory_kib_ms, disk_peak_bytes,
                                   disk_read_bytes, disk_write_bytes, net_rx_bytes, net_tx_bytes)
         select date_trunc('hour', now()), gen_random_uuid(), $1, 'local', '{}', 0, 0, 0, 0, 0, 0, 0, 0 from generate_series(1, 2500)`,
        [projectId],
      );
      await pool.query(
        `insert into usage_hours (sandbox_id, hour, project_id, region, duration_ms, cpu_usec, memory_kib_ms, disk_peak_bytes,
                                  disk_read_bytes, disk_write_bytes, net_rx_bytes, net_tx_bytes)
         select gen_random_uuid(), date_trunc('hour', now()), $1, 'local', 0, 0, 0, 0, 0, 0, 0, 0 from generate_series(1, 2500)`,
        [projectId],
      );
      await pool.query(
        `insert into registry_credentials (project_id, host, kind, username, key_id, envelope)
         select $1, 'host' || n || '.example', 'basic', 'u', 'k', '' from generate_series(1, 1500) n`,
        [projectId],
      );
    }
    assert.equal((await owner('DELETE', `/projects/${gone.projectId}`)).status, 200);
    await until(() => isTornDown(own.database, gone.projectId));
    const counts = async (projectId: string): Promise<unknown> =>
      (
        await pool.query(
          `select (select count(*)::int from usage_hourly where project_id = $1) as hourly,
                  (select count(*)::int from usage_hours where project_id = $1) as hours,
                  (select count(*)::int from registry_credentials where project_id = $1) as registries`,
          [projectId],
        )
      ).rows[0];
    assert.deepEqual(await counts(gone.projectId), { hourly: 0, hours: 0, registries: 0 });
    assert.deepEqual(await counts(stays.projectId), { hourly: 2500, hours: 2500, registries: 1500 });
  });
});
