/** A project with 10,000 functions of which 10 are used: what is not used is not read again and again. */
import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { BOUNDS, newUuid } from '@releap/contract';
import { GatewayClient } from '@releap/testing/gateway-client';
import { REGION, startWorld, until, type ScriptedRunner, type World } from '@releap/testing/world';

const FUNCTIONS = BOUNDS.functionsPerProject;
const USED = 10;
/** The largest page. */
const PAGE = 200;
/** A backend of PostgreSQL that is idle reports what it has read after 10 seconds at the latest. */
const STATISTICS_MS = 11_000;
const TABLES = [
  'functions',
  'function_versions',
  'function_templates',
  'function_schedules',
  'snapshots',
  'artifacts',
  'artifact_locations',
];
/** One task that reads all of a table reads it this many times; what else runs meanwhile does so once a minute at most. */
const ROUNDS = 20;
/** Those that run every minute, or more often. */
const TASKS = [
  'artifact-garbage',
  'artifacts',
  'builds',
  'charge',
  'function-builds',
  'function-deletions',
  'function-instances',
  'function-leases',
  'function-versions',
  'invocation-leases',
  'invocation-poll',
  'invocation-sweep',
  'schedules',
  'snapshots',
];

let world: World;
let runner: ScriptedRunner;
let used: { name: string; version: string }[];

before(async () => {
  world = await startWorld();
  runner = await world.runner();
  const { pool } = world.database;
  const spec = {
    version: 1,
    name: null,
    vcpus: 1,
    ports: [],
    egress_policy: null,
    image_ref: 'busybox',
    root: { type: 'builtin', name: 'busybox' },
    origin: null,
  };
  // Each has a template, which is an artifact.
  await pool.query(
    `with f as (
       insert into functions (id, project_id, name, region, latest_version, current_version, created_at)
       select gen_random_uuid(), $1, 'f' || n, $2, 1, 1, now() - n * interval '1 second' from generate_series(1, $3::integer) n
       returning id, project_id
     ), v as (
       insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib,
              scratch_mib, env, snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, template_state)
       select gen_random_uuid(), id, project_id, 1, 'busybox', $5::jsonb -> 'root', '[]', 8080, 1, 256, 64, '{}', 'fn_ready', 300, 60, 1, 'published'
         from f returning id, project_id
     ), t as (
       insert into function_templates (version_id, snapshot_id, runner_id, machine)
       select id, gen_random_uuid(), $4, '' from v returning version_id, snapshot_id
     ), k as (
       insert into snapshots (id, job_id, project_id, name, sandbox_id, kind, runner_id, status, desired, held, owner_service, spec,
              env_bytes, region, mode, cpu, mem_mib, scratch_mib, cpu_arch, fc_version, cpu_marker, updated_at)
       select t.snapshot_id, gen_random_uuid(), v.project_id, 'functions/' || t.snapshot_id, gen_random_uuid(), 'full', $4, 'ready', 'ready',
              true, 'functions', $5, 0, $2, 'burstable', 0.125, 256, 64, 'amd64', 'another', 'another', now() - interval '1 day'
         from t join v on v.id = t.version_id returning id, project_id
     ), a as (
       insert into artifacts (id, project_id, kind, stored_at) select id, project_id, 'snapshot', now() from k returning id
     )
     insert into artifact_locations (id, artifact_id, runner_id, desired, status, held)
     select gen_random_uuid(), id, $4, 'present', 'present', false from a`,
    [world.call.projectId, REGION, FUNCTIONS - USED, runner.id, JSON.stringify(spec)],
  );
  await pool.query('analyze');
  used = [];
  for (let n = 0; n < USED; n += 1) {
    const name = `used${n}`;
    const { status, body, text } = await world.call('POST', '/fns', {
      name,
      image: { type: 'named', name: 'busybox' },
    });
    assert.equal(status, 200, text);
    used.push({ name, version: body.version_id as string });
  }
});
after(() => world[Symbol.asyncDispose]());

it('is the most that a project may have, and its list comes in pages', async () => {
  const refused = await world.call('POST', '/fns', {
    name: 'one-more',
    image: { type: 'named', name: 'busybox' },
  });
  assert.equal(refused.status, 400, refused.text);
  const list = async (query: string): Promise<{ names: string[]; cursor: string | null }> => {
    const { status, body, text } = await world.call('GET', `/fns${query}`);
    assert.equal(status, 200, text);
    const names = (body.functions as { name: string }[]).map(({ name }) => name);
    return { names, cursor: body.next_cursor as string | null };
  };
  const all = await list('');
  assert.deepEqual([new Set(all.names).size, all.cursor], [FUNCTIONS, null]);
  let cursor = '';
  for (let page = 0; page < 3; page += 1) {
    const { names, cursor: next } = await list(`?limit=${PAGE}${cursor}`);
    assert.deepEqual(names, all.names.slice(page * PAGE, (page + 1) * PAGE));
    cursor = `&cursor=${encodeURIComponent(next ?? '')}`;
  }
  assert.equal((await world.call('GET', '/fns?limit=10&cursor=x')).status, 400);
});

it('gateways hear of the functions that they call', async () => {
  using gateway = await new GatewayClient(world.internalUrl).open(newUuid());
  const answer = await gateway.ask({ kind: 'function', function: 'used0' }, world.call.key);
  assert.equal(answer.type, 'function');
  for (const name of ['f1', 'f2', 'used0']) {
    const changed = await world.call('PATCH', `/fns/${name}/config`, { max_instances: 3 });
    assert.equal(changed.status, 200, changed.text);
  }
  await until(() => gateway.revoked.length > 0);
  assert.deepEqual(
    gateway.revoked.flatMap(({ ids }) => ids),
    answer.type === 'function' ? [answer.id] : [],
  );
});

it('periodic tasks do not read those that are not used', async () => {
  using gateway = await new GatewayClient(world.internalUrl).open(newUuid());
  await Promise.all(used.map(({ version }) => gateway.instance(version)));
  const rowsRead = async (): Promise<Map<string, number>> => {
    await sleep(STATISTICS_MS);
    const { rows } = await world.database.pool.query<{ relname: string; read: number }>(
      `select relname, (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer as read
         from pg_stat_user_tables where relname = any($1)`,
      [TABLES],
    );
    return new Map(rows.map(({ relname, read }) => [relname, read]));
  };
  const atFirst = await rowsRead();
  for (let round = 0; round < ROUNDS; round += 1) for (const name of TASKS) await world.control.runTask(name);
  const read = [...(await rowsRead())].map(([table, count]) => [table, count - (atFirst.get(table) ?? 0)]);
  for (const [table, count] of read)
    assert.ok(Number(count) < (ROUNDS * FUNCTIONS) / 2, `${count} rows of ${table}`);
});
