import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { it } from 'node:test';
import type { Database } from '@releap/database';
import { openFresh } from '@releap/testing/postgres';
import type { BuildJob } from '@releap/testing/runner-messages';
import { startWorld, until, type Caller, type ScriptedRunner } from '@releap/testing/world';
import { pino } from 'pino';
import { createBuildQueue } from '../src/storage/images/build-queue.ts';
import { ensureBuiltinImages } from '../src/storage/images/images.ts';
import { CONTROL_LIMITS } from '../src/limits.ts';

const RUNNERS = 50;

/** A database that counts the statements of its pool. */
function counting(database: Database): { database: Database; statements: string[] } {
  const statements: string[] = [];
  const pool = new Proxy(database.pool, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]): unknown => {
        if (name === 'query') statements.push((args[0] as { name?: string }).name ?? String(args[0]));
        return Reflect.apply(value, target, args);
      };
    },
  });
  return { database: { ...database, pool }, statements };
}

it('a sweep runs as many statements for fifty runners as for one, while nothing waits and while builds do', async () => {
  await using database = await openFresh();
  const counted = counting(database);
  const builders = Array.from({ length: RUNNERS }, () => ({
    runnerId: randomUUID(),
    region: 'here',
    ready: true,
    kinds: new Set(['build']),
    capabilities: new Set<string>(),
  }));
  const leased: (string | null)[] = [];
  const queue = createBuildQueue({
    database: counted.database,
    credentials: {
      needsPullCredentials: () => false,
      withPullCredentials: (these) => Promise.resolve([...these]),
    },
    limits: CONTROL_LIMITS,
    log: pino({ enabled: false }),
    builders: () => builders,
    onChanged: (resources) => leased.push(...resources.map(({ runner_id }) => runner_id)),
  });
  await queue.sweep();
  await queue.idle();
  assert.deepEqual(counted.statements, ['builds-overdue', 'builds-waiting']);
  counted.statements.length = 0;
  await ensureBuiltinImages(
    database.pool,
    Array.from({ length: 20 }, (_, n) => `image-${n}`),
  );
  await queue.sweep();
  await queue.idle();
  assert.deepEqual(counted.statements, ['builds-overdue', 'builds-waiting', 'builds-busy', 'builds-lease']);
  assert.equal(leased.length, 20);
  assert.equal(new Set(leased).size, 20, 'each on the runner with the fewest');
  await queue.close();
});

it('projects take turns, and one has only so many builds at a time', async () => {
  await using world = await startWorld({
    builtinImages: [],
    limits: { buildsPerRunner: 3, buildsPerProject: 2 },
  });
  const order: BuildJob[] = [];
  const [busy, other, third] = [await world.stranger(), await world.stranger(), await world.stranger()];
  // All wait before there is a host.
  const names = new Map<string, string>();
  const post = async (call: Caller, name: string): Promise<void> => {
    const { body } = await call('POST', '/images', { name, source: 'localhost:5000/app' });
    names.set(body.job_id, name);
  };
  for (const n of [1, 2, 3, 4]) await post(busy, `busy-${n}`);
  await post(other, 'other-1');
  await using runner = await world.runner({ build: (job) => void order.push(job) });
  const started = () => order.map(({ job_id }) => names.get(job_id));
  await until(() => order.length === 3);
  assert.deepEqual(new Set(started()), new Set(['busy-1', 'other-1', 'busy-2']));
  // A place is free, and the busy project has its two builds.
  runner.built(order.find(({ job_id }) => names.get(job_id) === 'other-1') as BuildJob, { error: 'ended' });
  await post(third, 'third-1');
  await until(() => order.length === 4);
  assert.equal(started()[3], 'third-1');
  runner.built(order.find(({ job_id }) => names.get(job_id) === 'busy-1') as BuildJob, { error: 'ended' });
  await until(() => order.length === 5);
  assert.equal(started()[4], 'busy-3');
});

it('an organization that floods the builds from many projects leaves places to another one', async () => {
  await using world = await startWorld({
    builtinImages: [],
    limits: { buildsPerRunner: 4, buildsPerProject: 2 },
  });
  const order: string[] = [];
  const names = new Map<string, string>();
  const post = async (call: Caller, name: string): Promise<void> => {
    const { body } = await call('POST', '/images', { name, source: 'localhost:5000/app' });
    names.set(body.job_id, name);
  };
  const projects = await Promise.all([1, 2, 3].map(() => world.stranger(world.orgId)));
  for (const project of projects) for (const n of [1, 2]) await post(project, `flood-${n}`);
  await using _runner = await world.runner({
    build: ({ job_id }) => void order.push(names.get(job_id) ?? ''),
  });
  await until(() => order.length === 3);
  await post(await world.stranger(), 'other');
  await until(() => order.length === 4);
  assert.equal(order[3], 'other', 'although three of the flood have waited for longer');
});

it('a Dockerfile waits for a host that can build it', async () => {
  await using world = await startWorld({ builtinImages: [] });
  const taken: string[] = [];
  const build = (by: string) => (): void => void taken.push(by);
  await using _old = await world.runner({ hello: { capabilities: [] }, build: build('old') });
  const source = { type: 'dockerfile', dockerfile: 'FROM a' };
  const { body } = await world.call('POST', '/images', { name: 'app', source });
  const other = await world.call('POST', '/images', { name: 'other', source: 'localhost:5000/app' });
  await until(() => taken.length === 1);
  assert.equal((await world.call('GET', `/jobs/${other.body.job_id}`)).body.status, 'running');
  assert.deepEqual(
    [(await world.call('GET', `/jobs/${body.job_id}`)).body.status, taken],
    ['queued', ['old']],
  );
  await using _new = await world.runner({ build: build('new') });
  await until(() => taken.includes('new'));
});

it('a Dockerfile that no known host can build fails soon, and its sandboxes are placed on none', async () => {
  await using world = await startWorld({ builtinImages: [], limits: { buildHostMs: 100 } });
  const image = { type: 'dockerfile', dockerfile: 'FROM a' };
  await using _old = await world.runner({ hello: { capabilities: [] } });
  const { body } = await world.call('POST', '/images', { name: 'app', source: image });
  const ended = async (path: string): Promise<{ status: string; error: string }> => {
    let last = { status: '', error: '' };
    await until(async () => (last = (await world.call('GET', path)).body).status === 'failed');
    return last;
  };
  const reason = /^no host of region ".+" builds Dockerfiles \(RELEAP_BUILDS is 0\)$/;
  assert.match((await ended(`/jobs/${body.job_id}`)).error, reason);
  assert.match((await ended('/images/app')).error, reason);
  const refused = await world.call('POST', '/vms', { image });
  const why = refused.body.error ?? (await ended(`/vms/${refused.body.vm_id}`)).error;
  assert.match(why, /builds Dockerfiles/);
});

it('a rebuild goes to the host that has built the image before', async () => {
  await using world = await startWorld({ builtinImages: [], limits: { buildsPerRunner: 1 } });
  const jobs: BuildJob[] = [];
  const build = (job: BuildJob): void => void jobs.push(job);
  const post = async (name: string): Promise<BuildJob> => {
    const { body } = await world.call('POST', '/images', { name, source: 'localhost:5000/app' });
    await until(() => jobs.some(({ job_id }) => job_id === body.job_id));
    return jobs.find(({ job_id }) => job_id === body.job_id) as BuildJob;
  };
  const takenBy = async ({ job_id }: BuildJob): Promise<string> =>
    (await world.call('GET', `/jobs/${job_id}`)).body.runner_id as string;
  const end = async (runner: ScriptedRunner, job: BuildJob): Promise<void> => {
    const seq = runner.built(job, { manifest_name: `sha256:${'ab'.repeat(32)}` });
    await until(() => runner.acked >= seq);
  };
  // The first host is full when the image is built, and free afterwards.
  await using first = await world.runner({ build });
  const other = await post('other');
  await using second = await world.runner({ build });
  const before = await post('app');
  assert.equal(await takenBy(before), second.id);
  await end(second, before);
  await end(first, other);
  const again = await post('app');
  assert.equal(await takenBy(again), second.id);
});
