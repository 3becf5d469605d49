/** The loss of the primary PostgreSQL under load, with a synchronous standby that is promoted. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { newUuid } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { inspectSandboxes } from '@releap/testing/inspect';
import { startPostgresPair } from '@releap/testing/postgres-pair';
import { isNightly, rounds } from '@releap/testing/repetitions';
import {
  caller,
  create,
  obedient,
  PATIENCE_MS,
  silent,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Caller,
} from '@releap/testing/world';
import type { CreateModule } from '../src/modules.ts';
import { newFunction } from './support/functions.ts';
import { handled, startScriptedGateway } from './support/scripted-gateway.ts';

const CREATORS = rounds(2, 8);
/** Acknowledged before the primary is killed, and again afterwards. */
const CREATES = rounds(6, 60);

/** A leased task that counts its runs on each server. */
function countedTask(): { module: CreateModule; runs: () => number } {
  let runs = 0;
  const task = {
    name: 'counted',
    everyMs: 50,
    leased: true,
    run: () => Promise.resolve(void (runs += 1)),
  };
  return { module: () => ({ name: 'counted', tasks: [task] }), runs: () => runs };
}

/** A request that failed may have failed only because the database was away, and says when to try again. */
function assertRefusal(answer: Answer): void {
  assert.equal(answer.status, 503, answer.text);
  assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]$/);
}

async function survives(loss: 'killed' | 'frozen'): Promise<void> {
  await using cleanup = new AsyncDisposableStack();
  const postgres = cleanup.use(await startPostgresPair());
  const gateway = cleanup.use(await startScriptedGateway());
  gateway.answer = (call) => handled(call, '1');
  const task = countedTask();
  const world = cleanup.use(
    await startWorld({
      databaseUrl: postgres.url,
      region: { id: 'here', toolboxProxyUrl: gateway.toolboxUrl },
      modules: [task.module],
      limits: { createQueue: 100_000, createQueueShare: 1_000 },
    }),
  );
  const other = await world.another({ modules: [task.module] });
  const elsewhere = caller(() => other.url, world.call.key, world.call.projectId);
  // However many are created until both servers have recovered, the host has capacity for them.
  const runner = await world.runner({ facts: { cores: 4_096, mem_mib: 2 ** 24, disk_mib: 2 ** 26 } });
  const fn = await newFunction(world.database, world.call.projectId);

  const created = new Map<string, string>();
  const spawned: string[] = [];
  let refused = 0;
  const stop = new AbortController();
  /** As a client does: repeats a request with its key until it is answered. */
  const persist = async (call: Caller, path: string, body: object): Promise<Answer> => {
    const headers = { 'idempotency-key': newUuid() };
    for (;;) {
      const answer = await call('POST', path, body, { headers });
      if (answer.status === 200) return answer;
      assertRefusal(answer);
      refused += 1;
      // Its id is the same again.
      await sleep(20);
    }
  };
  const creator = async (call: Caller): Promise<void> => {
    while (!stop.signal.aborted) {
      const answer = await persist(call, '/vms', { image: 'busybox', cpu: 0.125, mem_mib: 128 });
      created.set(answer.body.vm_id, answer.body.job_id);
    }
  };
  const spawner = async (call: Caller): Promise<void> => {
    while (!stop.signal.aborted) {
      const { body } = await persist(call, `/fns/${fn.name}/spawn`, { n: spawned.length });
      spawned.push(body.invocation_id);
    }
  };
  const reader = async (call: Caller): Promise<void> => {
    while (!stop.signal.aborted) {
      const answer = await call('GET', `/vms/${[...created.keys()].at(-1) ?? ''}`);
      if (answer.status !== 200) assertRefusal(answer);
      await sleep(10);
    }
  };
  const calls = [world.call, elsewhere];
  await create(world.call, world).then(({ id, jobId }) => created.set(id, jobId));
  const load = calls.flatMap((call) => [
    ...Array.from({ length: CREATORS }, () => creator(call)),
    spawner(call),
    reader(call),
  ]);
  const failed = Promise.all(load);
  failed.catch(() => stop.abort());
  /** Both servers do all of it again. */
  const progress = async (): Promise<void> => {
    const [creates, spawns, runs] = [created.size, spawned.length, task.runs()];
    await until(
      () =>
        stop.signal.aborted ||
        (created.size >= creates + CREATES && spawned.length >= spawns + 4 && task.runs() > runs),
    );
  };
  await progress();
  const acknowledged = [...created.keys()];
  const invocations = [...spawned];
  await postgres.losePrimary(loss);
  const before = refused;
  await until(() => refused > before || stop.signal.aborted);
  await postgres.promote();
  // Every server takes requests again, and has the lease of its task or leaves it to the other one.
  for (const call of calls) await until(async () => (await call('GET', '/readyz')).status === 200);
  await progress();
  stop.abort();
  await failed;

  for (const id of acknowledged) {
    const answer = await world.call('GET', `/vms/${id}`);
    assert.equal(answer.status, 200, `was acknowledged before the failure: ${answer.text}`);
  }
  // Each key has created one sandbox, however often its request was sent.
  // The pool of the test has not been used since: its first connections are to the host that it knew.
  const all = await eventually('the database answers the test', () => inspectSandboxes(world.database));
  assert.equal(all.length, created.size);
  for (const id of [...invocations, ...spawned]) {
    await until(async () => {
      const answer = await elsewhere('GET', `/invocations/${id}`);
      assert.equal(answer.status, 200, answer.text);
      return answer.body.status === 'succeeded';
    });
  }

  // Both listen on the new primary: a wait at one is woken by what a runner reports to the other.
  await until(async () => {
    // Its server closes the link when a report could not be stored in time.
    if (runner.closeCode !== undefined) await runner.connect();
    return (await elsewhere('GET', '/healthz')).status === 200;
  });
  runner.options.script = silent;
  const vm = await create(elsewhere, world);
  const assignment = await runner.assigned(vm.uuid);
  const wait = elsewhere('GET', `/vms/${vm.id}?wait=running&timeout_ms=${PATIENCE_MS}`);
  await runner.observed(assignment, { status: 'running' });
  assert.equal((await wait).body.status, 'running');
  runner.options.script = obedient;
  await elsewhere('DELETE', `/vms/${vm.id}`);
  await waitFor(world.call, vm.id, 'deleted');
}

describe('a synchronous standby is promoted under load: nothing acknowledged is lost, and all continues', () => {
  it('after the primary was killed', () => survives('killed'));

  it('after the primary was cut off, and answers nothing', { skip: !isNightly() }, () => survives('frozen'));
});
