import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { ensureBootstrap } from '../src/index.ts';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { openDatabase, startPostgres } from '@releap/database';
import { inspectSandboxes, type InspectedSandbox } from '@releap/testing/inspect';
import { freshDatabase } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import {
  caller,
  create,
  obedient,
  quiet,
  REGION,
  ScriptedRunner,
  silent,
  startWorld,
  until,
  waitFor,
  type World,
} from '@releap/testing/world';

describe('a control server that restarts', () => {
  it('continues with a sandbox that was written and not placed yet', async () => {
    await using world = await startWorld();
    const vm = await create(world.call, world);
    await world.restart();
    await world.runner();
    await waitFor(world.call, vm.id, 'running');
  });

  it('continues with a sandbox that was placed and not started yet', async () => {
    await using world = await startWorld();
    const runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    await runner.assigned(vm.uuid);
    await world.restart();
    runner.options.script = obedient;
    await runner.connect();
    await waitFor(world.call, vm.id, 'running');
    assert.equal((await world.call('GET', `/jobs/${vm.jobId}`)).body.status, 'done');
  });

  it('applies what was observed while it was down, once the runner repeats it', async () => {
    await using world = await startWorld();
    const runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    const assignment = await runner.assigned(vm.uuid);
    await world.control.close();
    await world.restart();
    await runner.connect();
    await runner.observed(assignment, { status: 'running' });
    await waitFor(world.call, vm.id, 'running');
  });

  it('ends what became overdue while it was down', async () => {
    await using world = await startWorld();
    await using _runner = await world.runner({ script: silent });
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'assigned');
    await world.database.pool.query(`update sandboxes set deadline_at = now() - interval '1 second'`);
    await world.restart();
    assert.match((await waitFor(world.call, vm.id, 'failed')).error ?? '', /assigned for longer than/);
  });

  it('does not mark runners as lost that could not report while it was down', async () => {
    await using world = await startWorld({ limits: { runnerLostAfterMs: 4_000 } });
    const runner = await world.runner();
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    await world.database.pool.query(`update runners set last_seen_at = now() - interval '1 hour'`);
    await world.restart();
    await runner.connect();
    assert.equal((await world.call('GET', `/vms/${vm.id}?wait=lost&timeout_ms=6000`)).body.status, 'running');
  });

  it('answers the long polls that wait, and stops at once', async () => {
    await using world = await startWorld();
    await world.runner();
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    const wait = world.call('GET', `/vms/${vm.id}?wait=paused&timeout_ms=60000`);
    await until(async () => (await world.call('GET', '/healthz')).status === 200);
    await world.control.close();
    assert.deepEqual([(await wait).status, (await wait).body.status], [200, 'running']);
    await world.restart();
  });
});

describe('kill -9 of the control server', () => {
  const start = async (
    env: Record<string, string>,
  ): Promise<{ child: ChildProcess; url: string; internalUrl: string }> => {
    const child = fork(programOf(fileURLToPath(new URL('./support/server.ts', import.meta.url))), {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    const [message] = (await once(child, 'message')) as [{ url: string; internalUrl: string }];
    return { child, ...message };
  };

  it('loses no create that was acknowledged: each is finished or failed by the next server', async () => {
    const databaseUrl = await freshDatabase();
    let server = await start({
      TEST_DATABASE_URL: databaseUrl,
      TEST_REGION: REGION,
      TEST_PORT: '0',
      TEST_INTERNAL_PORT: '0',
    });
    await using database = openDatabase({ url: databaseUrl, log: quiet });
    const { apiKey, projectId } = await ensureBootstrap(database, { keyName: 'default' });
    const call = caller(() => server.url, apiKey, projectId);
    await using runner = await ScriptedRunner.start(() => server.internalUrl, {});
    const port = new URL(server.url).port;
    const internalPort = new URL(server.internalUrl).port;
    const acknowledged: string[] = [];
    for (let round = 0; round < 3; round++) {
      await until(async () => (await call('GET', '/healthz')).status === 200);
      const stop = new AbortController();
      const creating = Array.from({ length: 4 }, async () => {
        while (!stop.signal.aborted) {
          try {
            const answer = await call('POST', '/vms', { image: 'busybox', cpu: 0.125, mem_mib: 128 });
            if (answer.status === 200) acknowledged.push(answer.body.vm_id);
          } catch {
            return;
          }
        }
      });
      const before = acknowledged.length;
      await until(() => acknowledged.length >= before + 20);
      server.child.kill('SIGKILL');
      await once(server.child, 'exit');
      stop.abort();
      await Promise.all(creating);
      server = await start({
        TEST_DATABASE_URL: databaseUrl,
        TEST_REGION: REGION,
        TEST_PORT: port,
        TEST_INTERNAL_PORT: internalPort,
      });
      await runner.connect();
    }
    assert.ok(acknowledged.length >= 60);
    for (const id of acknowledged) {
      const answer = await call('GET', `/vms/${id}?wait=running&timeout_ms=60000`);
      assert.ok(['running', 'failed'].includes(answer.body.status), `${id}: ${answer.text}`);
    }
    for (const { status, job_id } of await inspectSandboxes(database)) {
      if (['pending', 'assigned', 'building', 'booting'].includes(status)) continue;
      const job = await call('GET', `/jobs/${job_id}`);
      assert.ok(['done', 'failed'].includes(job.body.status), `ended with its sandbox: ${job.text}`);
    }
    server.child.kill('SIGTERM');
    await once(server.child, 'exit');
  });
});

describe('the database', () => {
  it('kill -9 of PostgreSQL: the server answers 503, comes back by itself, and has lost nothing', async () => {
    const dir = await mkdtemp(path.join(tmpdir(), 'releap-crash-'));
    await using cleanup = new AsyncDisposableStack();
    cleanup.defer(() => rm(dir, { recursive: true, force: true }));
    let server = await startPostgres({ dir, log: quiet });
    cleanup.defer(() => server.stop());
    await using world = await startWorld({ databaseUrl: server.url() });
    const runner = await world.runner();
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    process.kill(server.pid, 'SIGKILL');
    const during = await world.call('GET', `/vms/${vm.id}`);
    assert.ok(during.status === 503 || during.status === 200, during.text);
    await server.exited;
    await server.stop();
    server = await startPostgres({ dir, log: quiet });
    await until(async () => (await world.call('GET', `/vms/${vm.id}`)).status === 200);
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.status, 'running');
    if (runner.closeCode !== undefined) await runner.connect();
    const next = await create(world.call, world);
    await waitFor(world.call, next.id, 'running');
  });
});

describe('two servers on one database', () => {
  it('notify each other: a wait at one sees what a runner reports to the other', async () => {
    await using world = await startWorld();
    const other = await world.another();
    const runner = await world.runner({ script: silent });
    const elsewhere = caller(() => other.url, world.call.key, world.call.projectId);
    const vm = await create(elsewhere, world);
    const assignment = await runner.assigned(vm.uuid);
    const wait = elsewhere('GET', `/vms/${vm.id}?wait=running&timeout_ms=60000`);
    const started = performance.now();
    await runner.observed(assignment, { status: 'running' });
    assert.equal((await wait).body.status, 'running');
    assert.ok(performance.now() - started < 50_000, 'it was woken, and did not time out');
    await elsewhere('DELETE', `/vms/${vm.id}`);
    await runner.assigned(vm.uuid, (one) => one.desired === 'deleted');
  });

  /** Notifications until the servers have connected again are lost to them. */
  const deafen = (world: World): Promise<unknown> =>
    world.database.pool.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'releap-listen'`,
    );

  it('lose nothing with a notification: a runner gets the changes that its server was not notified of', async () => {
    await using world = await startWorld();
    const other = await world.another();
    const runner = await world.runner();
    const vm = await create(world.call, world);
    await waitFor(world.call, vm.id, 'running');
    const snapshot = await world.call('POST', `/vms/${vm.id}/snapshots`, { name: 'kept' });
    const wait = await world.call('GET', `/snapshots/${snapshot.body.id}?wait=ready&timeout_ms=60000`);
    assert.equal(wait.body.status, 'ready', wait.text);
    runner.options.snapshot = () => undefined;
    const elsewhere = caller(() => other.url, world.call.key, world.call.projectId);
    await deafen(world);
    // DELETE of a live sandbox: "deleting, then deleted"; "deleted once teardown confirmed".
    assert.equal((await elsewhere('DELETE', `/snapshots/${snapshot.body.id}`)).status, 200);
    assert.equal((await elsewhere('DELETE', `/vms/${vm.id}`)).status, 200);
    await runner.snapshotAssigned(snapshot.body.id, (one) => one.desired === 'deleted');
    await runner.assigned(vm.uuid, (one) => one.desired === 'deleted');
    await waitFor(world.call, vm.id, 'deleted');
  });

  it('place a sandbox once, though both try, and allocate no capacity twice', async () => {
    await using world = await startWorld({
      limits: { overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' } },
    });
    const other = await world.another();
    const elsewhere = caller(() => other.url, world.call.key, world.call.projectId);
    await world.runner({ facts: { cores: 4 } });
    await until(async () => (await world.call('GET', '/healthz')).status === 200);
    const made = await Promise.all(
      Array.from({ length: 40 }, (_, index) =>
        create(index % 2 ? world.call : elsewhere, world, { cpu: 0.25 }),
      ),
    );
    const inStatus = async (status: string): Promise<InspectedSandbox[]> =>
      (await inspectSandboxes(world.database)).filter((row) => row.status === status);
    await until(async () => {
      const running = await inStatus('running');
      return running.length === 16 && running.reduce((sum, { cpu }) => sum + cpu, 0) === 4;
    });
    assert.equal((await inStatus('pending')).length, made.length - 16);
  });

  it('move a runner that connects to the other one', async () => {
    await using world = await startWorld({ limits: { runnerLostAfterMs: 4_000 } });
    const other = await world.another();
    const first = await world.runner({ script: silent });
    await using second = await ScriptedRunner.start(() => other.internalUrl, { id: first.id });
    await until(() => first.closeCode !== undefined);
    assert.equal(first.closeCode, 4000);
    const vm = await create(world.call, world);
    await second.assigned(vm.uuid);
    await waitFor(world.call, vm.id, 'running');
  });
});
