import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, describe, it } from 'node:test';
import type { Database } from '@releap/database';
import { openFresh, quiet } from '@releap/testing/postgres';
import { create, silent, startWorld, until, waitFor } from '@releap/testing/world';
import type { Module, PeriodicTask, TaskRun } from '../src/index.ts';
import { createLeases } from '../src/platform/work/leases.ts';
import { createTaskRunner, type TaskRunner } from '../src/platform/work/task-runner.ts';

const always = { hold: async () => true, release: async () => undefined, releaseAll: async () => undefined };

const counting = (name: string, options: Partial<PeriodicTask> = {}): PeriodicTask & { runs: number } => ({
  name,
  everyMs: 10,
  leased: false,
  runs: 0,
  async run() {
    this.runs++;
  },
  ...options,
});

const throwing: PeriodicTask = {
  name: 'throwing',
  everyMs: 20,
  leased: false,
  async run() {
    throw new Error('always');
  },
};
/** Never ends, and does not heed its signal. */
const hanging: PeriodicTask = {
  name: 'hanging',
  everyMs: 20,
  leased: true,
  timeoutMs: 50,
  run: () => new Promise<void>(() => undefined),
};

describe('periodic tasks', () => {
  it('continue beside one that always throws and one that never ends', async () => {
    const task = counting('counting');
    const seen: TaskRun[] = [];
    const released: string[] = [];
    const tasks = createTaskRunner({
      tasks: [throwing, hanging, task],
      leases: { ...always, release: async (name) => void released.push(name) },
      log: quiet,
      onRun: (run) => seen.push(run),
    });
    tasks.start();
    const outcomes = (name: string): string[] =>
      seen.filter((run) => run.task === name).map((run) => run.outcome);
    await until(() => task.runs >= 10 && outcomes('hanging').includes('busy'));
    assert.deepEqual(new Set(outcomes('counting')), new Set(['ok']));
    assert.deepEqual(new Set(outcomes('throwing')), new Set(['failed']));
    // It ran once: it is not started again before it has ended. Its lease is free for another server.
    assert.deepEqual(outcomes('hanging').slice(0, 2), ['timeout', 'busy']);
    assert.deepEqual(released, ['hanging']);
    const stats = new Map(tasks.stats().map((stat) => [stat.task, stat]));
    assert.equal(stats.get('counting')?.failures, 0);
    assert.notEqual(stats.get('counting')?.lastSuccessAt, null);
    assert.equal(stats.get('throwing')?.failures, stats.get('throwing')?.runs);
    assert.equal(stats.get('throwing')?.lastSuccessAt, null);
    await tasks.close();
    const { runs } = task;
    await tasks.runOnce('counting');
    assert.equal(task.runs, runs, 'nothing runs after the close');
  });

  it('are told by their signal that the server stops, and are waited for', async () => {
    let started = false;
    let ended = false;
    const tasks = createTaskRunner({
      tasks: [
        {
          name: 'patient',
          everyMs: 60_000,
          leased: false,
          run: (signal) =>
            new Promise((resolve) => {
              started = true;
              signal.addEventListener('abort', () => {
                ended = true;
                resolve();
              });
            }),
        },
      ],
      leases: always,
      log: quiet,
    });
    const run = tasks.runOnce();
    await until(() => started);
    await tasks.close();
    await run;
    assert.equal(ended, true);
  });

  it('run once more when a run is asked for while one is under way', async () => {
    const gate = Promise.withResolvers<void>();
    let runs = 0;
    const tasks = createTaskRunner({
      tasks: [
        {
          name: 'slow',
          everyMs: 60_000,
          leased: false,
          async run() {
            runs++;
            await gate.promise;
          },
        },
      ],
      leases: always,
      log: quiet,
    });
    const first = tasks.runOnce();
    await until(() => runs === 1);
    const second = tasks.runOnce();
    gate.resolve();
    await Promise.all([first, second]);
    assert.equal(runs, 2);
    await tasks.close();
  });

  it('have names of their own', () => {
    assert.throws(
      () => createTaskRunner({ tasks: [throwing, throwing], leases: always, log: quiet }),
      /two periodic tasks are named throwing/,
    );
  });
});

describe('a leased task', () => {
  let database: Database;
  before(async () => {
    database = await openFresh();
  });
  after(() => database.close());

  const server = (
    task: PeriodicTask,
    leaseMs: number,
  ): { tasks: TaskRunner; outcomes: string[]; id: string } => {
    const id = randomUUID();
    const outcomes: string[] = [];
    const tasks = createTaskRunner({
      tasks: [task],
      leases: createLeases(database.pool, id, leaseMs),
      log: quiet,
      onRun: (run) => outcomes.push(run.outcome),
    });
    return { tasks, outcomes, id };
  };

  it('is run by one server at a time, and by another when that one stops', async () => {
    const task = counting('one-at-a-time', { leased: true });
    const [first, second] = [server(task, 60_000), server(task, 60_000)];
    await first.tasks.runOnce();
    await second.tasks.runOnce();
    await first.tasks.runOnce();
    assert.deepEqual([first.outcomes, second.outcomes], [['ok', 'ok'], ['not-leader']]);
    await first.tasks.close();
    await second.tasks.runOnce();
    assert.deepEqual(second.outcomes, ['not-leader', 'ok']);
    await second.tasks.close();
  });

  it('is taken over from a server that has died without giving its lease back', async () => {
    const task = counting('taken-over', { leased: true });
    const [first, second] = [server(task, 300), server(task, 60_000)];
    await first.tasks.runOnce();
    await until(async () => {
      await second.tasks.runOnce();
      return second.outcomes.at(-1) === 'ok';
    });
    await first.tasks.runOnce();
    assert.equal(first.outcomes.at(-1), 'not-leader');
    await Promise.all([first.tasks.close(), second.tasks.close()]);
  });

  it('is asked for rarely by servers that do not hold the lease, and again when it ends or another server says so', async () => {
    const long = 3_600_000;
    let asked = 0;
    const counted = {
      query: (...of: Parameters<typeof database.pool.query>) => {
        asked += 1;
        return database.pool.query(...of);
      },
    } as unknown as typeof database.pool;
    let told = 0;
    const first = createLeases(database.pool, randomUUID(), long, () => (told += 1));
    const second = createLeases(counted, randomUUID(), long);
    assert.equal(await first.hold('rare'), true);
    for (let look = 0; look < 5; look += 1) assert.equal(await second.hold('rare'), false);
    assert.equal(asked, 1);
    assert.equal(await second.hold('rare', true), false);
    assert.equal(asked, 2, 'who waits for a run looks at once');
    await first.releaseAll();
    assert.equal(told, 1);
    assert.equal(await second.hold('rare'), false);
    second.lookAgain();
    assert.equal(await second.hold('rare'), true);
    const dying = createLeases(database.pool, randomUUID(), 300);
    assert.equal(await dying.hold('short'), true);
    await until(() => second.hold('short'));
    await second.releaseAll();
  });

  it('counts as failed while the database cannot be asked for the lease', async () => {
    const task = counting('no-database', { leased: true });
    const outcomes: string[] = [];
    const tasks = createTaskRunner({
      tasks: [task],
      leases: { ...always, hold: async () => Promise.reject(new Error('no database')) },
      log: quiet,
      onRun: (run) => outcomes.push(run.outcome),
    });
    await tasks.runOnce();
    assert.deepEqual([outcomes, task.runs], [['failed'], 0]);
    await tasks.close();
  });
});

describe('a control server with a task that throws and one that never ends', () => {
  const broken = (): Module => ({ name: 'broken', tasks: [throwing, hanging] });

  it('still ends what is overdue, and still finds lost runners', async () => {
    await using world = await startWorld({
      modules: [broken],
      limits: { runnerLostAfterMs: 1_000 },
    });
    const runner = await world.runner();
    const running = await create(world.call, world);
    await waitFor(world.call, running.id, 'running');

    // Its runner never says anything about it.
    runner.options.script = silent;
    const overdue = await create(world.call, world, { persistent: false });
    await runner.assigned(overdue.uuid);
    await world.database.pool.query('update sandboxes set deadline_at = now() where id = $1', [overdue.uuid]);
    const failed = await waitFor(world.call, overdue.id, 'failed');
    assert.match(failed.error ?? '', /longer than/);

    runner.drop();
    const lost = await waitFor(world.call, running.id, 'lost');
    assert.match(lost.error ?? '', /has not been heard from/);
  });
});
