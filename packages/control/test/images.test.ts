import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ImageList } from '@releap/contract';
import type { BuildJob } from '@releap/testing/runner-messages';
import { Compile } from 'typebox/compile';
import { silent, startWorld, until, host, refusalOf, type Caller } from '@releap/testing/world';
import { inspect } from '@releap/testing/inspect';

const world = await startWorld();
await world.database.pool.query(
  `insert into global_regions (id, name) values ('planet', 'Planet'), ('empty', 'Empty')`,
);
await world.database.pool.query(
  `insert into regions (id, name, enabled, global_region_id) values ('closed', 'Closed', false, 'empty')`,
);
await world.database.pool.query(`update regions set global_region_id = 'planet' where id = 'here'`);
const call = world.call;

const digest = (pair: string): string => `sha256:${pair.repeat(32)}`;
const imageOf = async (caller: Caller, name: string) =>
  (await caller('GET', '/images')).body.images.find((image: { name: string }) => image.name === name);
const ended = (caller: Caller, job: string) =>
  until(async () => ['done', 'failed'].includes((await caller('GET', `/jobs/${job}`)).body.status));

describe('POST /images', () => {
  it('with an Idempotency-Key makes one build, also when the server dies before it has written the answer down', async () => {
    await using _runner = await world.runner();
    const headers = { 'idempotency-key': 'once' };
    const body = { name: 'once', source: { type: 'registry', ref: 'localhost:5000/once:1' } };
    const first = await call('POST', '/images', body, { headers });
    await ended(call, first.body.job_id);
    const newer = { name: 'once', source: { type: 'registry', ref: 'localhost:5000/once:2' } };
    const second = await call('POST', '/images', newer);
    await ended(call, second.body.job_id);
    await world.database.pool.query('update idempotency_keys set sealed = null, lease_until = now()');
    assert.equal((await call('POST', '/images', body, { headers })).text, first.text);
    const image = await imageOf(call, 'once');
    assert.deepEqual([image.source, image.status], [newer.source, 'ready'], 'what came later stays');
  });

  it('builds from a registry reference: pending, then ready with manifest and layers; the job is done', async () => {
    await using runner = await world.runner();
    const answer = await call('POST', '/images', {
      name: 'app',
      source: { type: 'registry', ref: 'localhost:5000/app:1' },
    });
    assert.equal(answer.status, 200, answer.text);
    const { image_id, job_id, ...rest } = answer.body;
    assert.deepEqual(rest, { name: 'app', status: 'pending', region: 'here' });
    await ended(call, job_id);
    const { created_at, updated_at, built_at, ...image } = await imageOf(call, 'app');
    assert.ok(Date.parse(created_at) <= Date.parse(built_at));
    assert.ok(Date.parse(created_at) <= Date.parse(updated_at));
    assert.deepEqual(image, {
      id: image_id,
      name: 'app',
      source: { type: 'registry', ref: 'localhost:5000/app:1' },
      manifest_name: digest('cd'),
      status: 'ready',
      layer_count: 3,
      bytes: 4096,
      docker: false,
      error: null,
      job_id,
      region: 'here',
    });
    const job = (await call('GET', `/jobs/${job_id}`)).body;
    assert.deepEqual([job.kind, job.status, job.attempts, job.runner_id], ['build', 'done', 1, runner.id]);

    const vm = await call('POST', '/vms', { image: 'app' });
    const { spec } = await inspect(world.database, { jobId: vm.body.job_id });
    assert.deepEqual(
      spec.root,
      { type: 'registry', ref: 'localhost:5000/app:1', digest: digest('cd') },
      'pinned',
    );
  });

  it('with docker is built on top of what the registry has, and boots from what its host has made', async () => {
    const jobs: BuildJob[] = [];
    await using old = await world.runner({ hello: { capabilities: ['dockerfile-builds'] } });
    await using runner = await world.runner({ build: (job) => void jobs.push(job) });
    const source = { type: 'registry', ref: 'localhost:5000/engine:1' };
    const { body } = await call('POST', '/images', { name: 'engine', source, docker: true });
    const early = await call('POST', '/vms', { image: 'engine' });
    assert.deepEqual([early.status, /still being built/.test(early.text)], [409, true], early.text);
    await until(() => jobs.length > 0);
    const root = jobs[0]?.root;
    assert.deepEqual(root?.type === 'dockerfile' && [root.dockerfile, root.docker, root.context], [
      { text: 'FROM localhost:5000/engine:1\n' },
      true,
      undefined,
    ]);
    runner.built(jobs[0] as BuildJob, { manifest_name: digest('0d'), layer_count: 4 });
    await ended(call, body.job_id);
    const image = await imageOf(call, 'engine');
    assert.deepEqual([image.source, image.docker, image.manifest_name], [source, true, digest('0d')]);
    assert.notEqual((await call('GET', `/jobs/${body.job_id}`)).body.runner_id, old.id);
    const vm = await call('POST', '/vms', { image: 'engine' });
    assert.equal(vm.status, 200, vm.text);
    const { spec } = await inspect(world.database, { jobId: vm.body.job_id });
    assert.deepEqual(spec.root, { type: 'stored', digest: digest('0d') });
  });

  it('fails with the reason of the runner, for the image and its job', async () => {
    await using _runner = await world.runner({
      build: (job, self) => void self.built(job, { error: 'localhost:1 refused the connection' }),
    });
    const { body } = await call('POST', '/images', { name: 'unreachable', source: 'localhost:1/x' });
    await ended(call, body.job_id);
    const image = await imageOf(call, 'unreachable');
    assert.deepEqual([image.status, image.error], ['failed', 'localhost:1 refused the connection']);
    assert.equal(
      (await call('GET', `/jobs/${body.job_id}`)).body.error,
      'localhost:1 refused the connection',
    );
  });

  it('replaces the source of a name that is posted again; the older build no longer counts', async () => {
    const jobs: BuildJob[] = [];
    await using runner = await world.runner({ build: (job) => void jobs.push(job) });
    // A build whose lease is over is given out again: the newest counts.
    const build = (ref: string): BuildJob | undefined =>
      jobs.findLast(({ root }) => root.type === 'registry' && root.ref === ref);
    const first = (await call('POST', '/images', { name: 'twice', source: 'localhost:5000/old' })).body;
    await until(() => build('localhost:5000/old') !== undefined);
    const second = (await call('POST', '/images', { name: 'twice', source: 'localhost:5000/new' })).body;
    assert.equal(second.image_id, first.image_id);
    await until(() => build('localhost:5000/new') !== undefined);
    runner.built(build('localhost:5000/old') as BuildJob, { manifest_name: digest('01'), layer_count: 1 });
    const seq = runner.built(build('localhost:5000/new') as BuildJob, {
      manifest_name: digest('02'),
      layer_count: 2,
    });
    await until(() => runner.acked >= seq);
    assert.deepEqual(
      [(await imageOf(call, 'twice')).source, (await imageOf(call, 'twice')).manifest_name],
      [{ type: 'registry', ref: 'localhost:5000/new' }, digest('02')],
    );
    assert.match((await call('GET', `/jobs/${first.job_id}`)).body.error, /replaced by a newer build/);
  });

  it('cancels the replaced build on its runner, whose slot is free at once', async () => {
    const jobs: BuildJob[] = [];
    await using runner = await world.runner({ build: (job) => void jobs.push(job) });
    const replace = async (n: number): Promise<string> =>
      (await call('POST', '/images', { name: 'replaced', source: `localhost:5000/slow:${n}` })).body.job_id;
    const posted: string[] = [];
    // More than a runner is given at the same time: each is leased although none has ended there.
    for (let n = 1; n <= 4; n++) {
      const id = await replace(n);
      posted.push(id);
      await until(() => jobs.some(({ job_id }) => job_id === id));
    }
    await until(() => runner.cancelled.length >= 3);
    assert.deepEqual(new Set(runner.cancelled.map(({ job_id }) => job_id)), new Set(posted.slice(0, 3)));
    for (const { job_id, attempt } of runner.cancelled)
      assert.ok(
        attempt > (jobs.find((job) => job.job_id === job_id)?.attempt ?? 0),
        'it has a newer generation',
      );
    const last = jobs.findLast(({ job_id }) => job_id === posted[3]) as BuildJob;
    runner.built(last, { manifest_name: digest('04'), layer_count: 1 });
    await ended(call, last.job_id);
    assert.equal((await imageOf(call, 'replaced')).manifest_name, digest('04'));
  });

  for (const [what, body, message] of [
    ['invalid JSON', '{', /must be JSON/],
    ['missing name', { source: 'a/b' }, /name is required/],
    ['invalid name', { name: 'a/b', source: 'a/b' }, /name must be/],
    ['missing source', { name: 'x' }, /source is required/],
    ['invalid reference', { name: 'x', source: 'A B:C' }, /source/],
    ['source of another image', { name: 'x', source: 'busybox' }, /source must be .* its type was "named"/],
    [
      'source of a snapshot',
      { name: 'x', source: { type: 'snapshot', name: 's' } },
      /its type was "snapshot"/,
    ],
    [
      'dockerfile without text',
      { name: 'x', source: { type: 'dockerfile' } },
      /source\.dockerfile is required/,
    ],
    [
      'dockerfile that is too long',
      { name: 'x', source: { type: 'dockerfile', dockerfile: 'x'.repeat(65_537) } },
      /source\.dockerfile has 65537 characters; at most 65536/,
    ],
    ['unknown region', { name: 'x', source: 'a/b', region: 'nowhere' }, /region "nowhere" is unknown/],
    ['disabled region', { name: 'x', source: 'a/b', region: 'closed' }, /region "closed" is disabled/],
    ['global region with no active members', { name: 'x', source: 'a/b', region: 'empty' }, /"empty"/],
  ] as const) {
    it(`POST /images 400: ${what}`, async () => {
      const answer = await call('POST', '/images', body);
      assert.equal(answer.status, 400, answer.text);
      assert.match(answer.body.error, message);
    });
  }
});

it('POST /images: region is a slug or a global id, and the response names the slug', async () => {
  const answer = await call('POST', '/images', {
    name: 'placed',
    source: 'localhost:5000/x',
    region: 'planet',
  });
  assert.deepEqual([answer.status, answer.body.region], [200, 'here'], answer.text);
  assert.equal((await imageOf(call, 'placed')).region, 'here');
});

it('POST /images 503: build queue degraded; nothing was created', async () => {
  const { pool } = world.database;
  const blocker = await pool.connect();
  // Reads are not blocked: otherwise the periodic tasks of the server would wait and hold all its connections.
  await blocker.query('begin; lock table images in share mode');
  try {
    let isAnswered = false;
    const [answer] = await Promise.all([
      call('POST', '/images', { name: 'degraded', source: 'localhost:5000/x' }).finally(
        () => (isAnswered = true),
      ),
      // Let it wait, then break the connection of the server under it. PostgreSQL ends a wait of ten seconds itself.
      until(async () => {
        if (isAnswered) return true;
        const { rows } = await pool.query(
          `select pid from pg_stat_activity where application_name = 'releap-control' and wait_event_type = 'Lock'
              and query like '%insert into images%' and datname = current_database()`,
        );
        if (rows.length === 0) return false;
        await pool.query('select pg_terminate_backend($1)', [rows[0].pid]);
        return true;
      }),
    ]);
    assert.equal(answer.status, 503, answer.text);
    assert.match(answer.body.error, /try again/);
  } finally {
    // Its connection ends: one that PostgreSQL has ended meanwhile cannot be rolled back.
    blocker.release(true);
  }
  assert.equal((await call('GET', '/images/degraded')).status, 404);
});

it("GET /jobs/:id 404: unknown job or another project's", async () => {
  const { body } = await call('POST', '/images', { name: 'seen', source: 'localhost:5000/x' });
  assert.equal((await call('GET', `/jobs/${body.job_id}`)).status, 200);
  const other = await world.stranger();
  const answers = [
    await other('GET', `/jobs/${body.job_id}`),
    await other('GET', '/jobs/00000000-0000-4000-8000-000000000000'),
  ];
  for (const answer of answers) assert.equal(answer.status, 404, answer.text);
});

describe('GET /images', () => {
  it('limit (default 100, max 200)', async () => {
    const own = await world.stranger();
    await world.database.pool.query(
      `insert into images (id, project_id, name, source, status, job_id)
       select gen_random_uuid(), $1, 'many-' || n, '{"type":"registry","ref":"x/y"}', 'failed', gen_random_uuid()
         from generate_series(1, 205) n`,
      [own.projectId],
    );
    for (const [limit, expected] of [
      ['', 100],
      ['?limit=0', 1],
      ['?limit=150', 150],
      ['?limit=201', 200],
    ] as const)
      assert.equal((await own('GET', `/images${limit}`)).body.images.length, expected, limit);
  });

  it('lists newest first in pages, with the built-in images in every project', async () => {
    const own = await world.stranger();
    for (const name of ['a', 'b', 'c']) await own('POST', '/images', { name, source: 'localhost:5000/x' });
    const names: string[] = [];
    let cursor: string | null = '';
    while (cursor !== null) {
      const page = await own('GET', `/images?limit=2&cursor=${cursor}`);
      assert.ok(Compile(ImageList).Check(page.body), page.text);
      names.push(...page.body.images.map((image: { name: string }) => image.name));
      cursor = page.body.next_cursor;
    }
    assert.deepEqual(names, ['c', 'b', 'a', 'busybox']);
  });

  it('prefers an image of the project to the built-in one of the same name, for that project alone', async () => {
    const own = await world.stranger();
    await own('POST', '/images', { name: 'busybox', source: 'localhost:5000/mine' });
    assert.deepEqual(
      (await own('GET', '/images')).body.images.map((image: { name: string; source: object }) => [
        image.name,
        image.source,
      ]),
      [['busybox', { type: 'registry', ref: 'localhost:5000/mine' }]],
    );
    const root = async (caller: Caller) => {
      const { body } = await caller('POST', '/vms', { image: 'busybox' });
      return (await inspect(world.database, { jobId: body.job_id })).spec.root.type;
    };
    assert.equal(await root(own), 'registry');
    assert.equal(await root(call), 'builtin');
  });

  it('GET /images 400: malformed cursor, also one of another list', async () => {
    assert.equal((await call('GET', '/images?cursor=zzz')).status, 400);
    await call('POST', '/vms', { image: 'busybox' });
    await call('POST', '/vms', { image: 'busybox' });
    const { next_cursor } = (await call('GET', '/vms?limit=1')).body;
    assert.ok(next_cursor);
    assert.equal((await call('GET', `/images?cursor=${next_cursor}`)).status, 400);
  });

  it('shows nothing of another project', async () => {
    await call('POST', '/images', { name: 'private', source: 'localhost:5000/x' });
    const other = await world.stranger();
    assert.equal(await imageOf(other, 'private'), undefined);
    const unknown = await other('POST', '/vms', { image: 'private' });
    const refusal = { error: 'image "private" not found', code: 'image_not_found', retryable: false };
    assert.deepEqual([unknown.status, refusalOf(unknown)], [404, refusal]);
  });
});

describe('a build', () => {
  it('goes to another runner when its own goes away, and the late answer of the first is ignored', async () => {
    const jobs: BuildJob[] = [];
    const first = await world.runner({
      build(job, self) {
        if (job.root.type === 'registry' && job.root.ref === 'localhost:5000/moved') jobs.push(job);
        else self.built(job, { error: 'not this one' });
      },
    });
    const { body } = await call('POST', '/images', { name: 'moved', source: 'localhost:5000/moved' });
    await until(() => jobs.some((job) => job.job_id === body.job_id));
    const lost = jobs.find((job) => job.job_id === body.job_id) as BuildJob;
    first.drop();
    await until(async () => (await host(world, first.id))?.status !== 'online');
    // As after half a minute without its host.
    await world.database.pool.query('update jobs set lease_until = now() where id = $1', [body.job_id]);
    await using second = await world.runner({
      build: (job, self) => void self.built(job, { manifest_name: digest('22'), layer_count: 2 }),
    });
    await ended(call, body.job_id);
    assert.equal((await call('GET', `/jobs/${body.job_id}`)).body.attempts, 2);
    await first.connect();
    const seq = first.built(lost, { manifest_name: digest('11'), layer_count: 1 });
    await until(() => first.acked >= seq);
    assert.equal((await imageOf(call, 'moved')).manifest_name, digest('22'));
    assert.equal((await call('GET', `/jobs/${body.job_id}`)).body.runner_id, second.id);
    await first[Symbol.asyncDispose]();
  });

  it('is told again to its runner when that comes back in time', async () => {
    await using mine = await startWorld({ builtinImages: [], limits: { buildLeaseMs: 60_000 } });
    const jobs: BuildJob[] = [];
    const runner = await mine.runner({ build: (job) => void jobs.push(job) });
    const { body } = await mine.call('POST', '/images', { name: 'resumed', source: 'localhost:5000/x' });
    await until(() => jobs.length === 1);
    runner.drop();
    await until(async () => (await host(mine, runner.id))?.status === 'offline');
    await runner.connect();
    await until(() => jobs.length === 2);
    assert.deepEqual(jobs[1], jobs[0]);
    runner.built(jobs[0] as BuildJob, { manifest_name: digest('33'), layer_count: 1 });
    await ended(mine.call, body.job_id);
    assert.equal((await imageOf(mine.call, 'resumed')).status, 'ready');
  });

  it('fails for good when its hosts are lost repeatedly', async () => {
    await using mine = await startWorld({
      builtinImages: [],
      limits: { buildLeaseMs: 50, buildAttempts: 2 },
    });
    const { body } = await mine.call('POST', '/images', { name: 'cursed', source: 'localhost:5000/x' });
    for (let i = 0; i < 2; i++) {
      const runner = await mine.runner({ script: silent, build: (_job, self) => self.drop() });
      await until(async () => (await mine.call('GET', `/jobs/${body.job_id}`)).body.attempts > i);
      await runner[Symbol.asyncDispose]();
    }
    await ended(mine.call, body.job_id);
    assert.match((await imageOf(mine.call, 'cursed')).error, /was lost 2 times/);
  });

  it('that no runner takes is failed after its deadline', async () => {
    await using mine = await startWorld({ builtinImages: [], limits: { buildDeadlineMs: 300 } });
    const { body } = await mine.call('POST', '/images', { name: 'waiting', source: 'localhost:5000/x' });
    await ended(mine.call, body.job_id);
    assert.equal((await imageOf(mine.call, 'waiting')).status, 'failed');
  });

  it('of a built-in image that failed is tried again when a runner gets ready', async () => {
    await using mine = await startWorld({ limits: { buildLeaseMs: 3_000 } });
    await using broken = await mine.runner({
      build: (job, self) => void self.built(job, { error: 'no tool' }),
    });
    await until(async () => (await imageOf(mine.call, 'busybox')).status === 'failed');
    await broken[Symbol.asyncDispose]();
    await using _good = await mine.runner();
    await until(async () => (await imageOf(mine.call, 'busybox')).status === 'ready');
  });
});
