/** One database, servers of two versions: the previous one knows no spec, no `sandbox_env` and no owner. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { queryOne, migrate, openDatabase, readMigrations, type Database } from '@releap/database';
import { emptyDatabase, openFresh, quiet } from '@releap/testing/postgres';
import { readEnvironments } from '../src/compute/sandboxes/environment.ts';
import { createSandbox, type NewSandboxSpec } from '../src/compute/sandboxes/insert.ts';
import { SANDBOX_SQL } from '../src/compute/sandboxes/transition-sql.ts';
import { STATE_DEADLINES } from '../src/compute/sandboxes/transitions.ts';

const ORG = newUuid();
const PROJECT = newUuid();
const RUNNER = newUuid();

async function seed({ pool }: Pick<Database, 'pool'>): Promise<void> {
  await pool.query(`insert into organizations (id, name) values ($1, 'o')`, [ORG]);
  await pool.query(`insert into projects (id, org_id, name) values ($1, $2, 'p')`, [PROJECT, ORG]);
  await pool.query(`insert into regions (id, name) values ('r', 'r')`);
  await pool.query(
    `insert into runners (id, region, status, data_url, facts) values ($1, 'r', 'online', '', '{}')`,
    [RUNNER],
  );
}

/** The INSERT of the previous version, word for word. */
const PREVIOUS_INSERT = `with job as (
     insert into jobs (id, project_id, kind, status, sandbox_id) values ($2, $3, 'vm.create', 'queued', $1)
   ), attached as (
     insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name)
     select $1::uuid, decode(t.hash, 'hex'), t.secret_id, t.name
       from jsonb_to_recordset($27::jsonb) as t(secret_id uuid, name text, hash text)
   )
   insert into sandboxes (id, job_id, project_id, name, region, status, desired, deadline_at, mode, cpu, vcpus, mem_mib,
     scratch_mib, gpu_host, docker_data_mib, ports, env, egress_policy, persistent, spot, cpu_arch, image_ref, root,
     access_token_hash, origin, parent_snapshot_id, start_from, has_memory)
   values ($1, $2, $3, $4, $5, 'pending', $6, now() + $7 * interval '1 millisecond', $8, $9, $10, $11,
     $12, $13, $14, $15::jsonb, $16::jsonb, $17::jsonb, $18, $19, $20, $21, $22::jsonb, $23,
     $24::jsonb, $25, $26, $26 = 'memory')`;

const PORTS = [{ vm_port: 80, proto: 'tcp' as const }];
const EGRESS = { enabled: true, allow: ['example.com'] };
const ENV = { A: 'one', B: 'two' };
const ROOT = { type: 'builtin' as const, name: 'busybox' };
const ORIGIN = { type: 'snapshot' as const, snapshot_id: newUuid(), kind: 'disk' as const };

async function previousCreates(
  { pool }: Pick<Database, 'pool'>,
  env: object,
  origin: object | null = ORIGIN,
): Promise<string> {
  const id = newUuid();
  // biome-ignore format: one value a parameter, in its order
  await pool.query(PREVIOUS_INSERT, [
    id, newUuid(), PROJECT, 'old', 'r', 'running', 60_000, 'burstable', 0.5, 2, 512, 1024, 0, null, JSON.stringify(PORTS),
    JSON.stringify(env), JSON.stringify(EGRESS), true, false, 'amd64', 'busybox', JSON.stringify(ROOT), Buffer.alloc(32),
    origin === null ? null : JSON.stringify(origin), null, 'disk', '[]',
  ]);
  return id;
}

const SPEC = {
  version: 1,
  name: 'old',
  vcpus: 2,
  ports: PORTS,
  egress_policy: EGRESS,
  image_ref: 'busybox',
  root: ROOT,
  origin: ORIGIN,
};

async function newForm({ pool }: Pick<Database, 'pool'>, id: string): Promise<unknown> {
  const { rows } = await pool.query(
    `select spec, owner_kind, env_bytes > 0 as sized, (select env from sandbox_env where sandbox_id = s.id) as env
       from sandboxes s where id = $1`,
    [id],
  );
  return rows[0];
}

describe('a database of the previous version', () => {
  it('keeps every sandbox and snapshot when it is migrated', async () => {
    const url = await emptyDatabase();
    const known = await readMigrations();
    await migrate({ url, log: quiet, migrations: known.slice(0, 6) });
    await using database = openDatabase({ url, log: quiet });
    await seed(database);
    const [bare, full] = [await previousCreates(database, {}), await previousCreates(database, ENV)];
    const snapshot = newUuid();
    await database.pool.query(
      `insert into snapshots (id, project_id, name, kind, status, desired, runner_id, held, job_id, sandbox_id, region, image_ref,
         root, mode, cpu, vcpus, mem_mib, scratch_mib, cpu_arch, ports, env, egress_policy)
       values ($1, $2, 's', 'full', 'ready', 'ready', $3, true, gen_random_uuid(), $4, 'r', 'busybox', $5, 'burstable', 0.5, 2, 512, 1024,
         'amd64', $6, $7, $8)`,
      [
        snapshot,
        PROJECT,
        RUNNER,
        full,
        JSON.stringify(ROOT),
        JSON.stringify(PORTS),
        JSON.stringify(ENV),
        JSON.stringify(EGRESS),
      ],
    );
    await migrate({ url, log: quiet });
    assert.deepEqual(await newForm(database, bare), {
      spec: SPEC,
      owner_kind: 'project',
      sized: false,
      env: null,
    });
    assert.deepEqual(await newForm(database, full), {
      spec: SPEC,
      owner_kind: 'project',
      sized: true,
      env: ENV,
    });
    const { rows } = await database.pool.query(
      `select s.spec, s.env_bytes > 0 as sized, e.env from snapshots s join snapshot_env e on e.snapshot_id = s.id`,
    );
    assert.deepEqual(rows, [{ spec: { ...SPEC, name: null, origin: null }, sized: true, env: ENV }]);
  });
});

describe('a server of the previous version on the migrated database', () => {
  it('writes sandboxes that this version reads', async () => {
    await using database = await openFresh();
    await seed(database);
    const [bare, full] = [await previousCreates(database, {}, null), await previousCreates(database, ENV)];
    const empty = { spec: { ...SPEC, origin: null }, owner_kind: 'project', sized: false, env: null };
    assert.deepEqual(await newForm(database, bare), empty);
    assert.deepEqual(await newForm(database, full), {
      spec: SPEC,
      owner_kind: 'project',
      sized: true,
      env: ENV,
    });
    // Its transition to `deleted` erases the column, its teardown the policy too.
    await database.pool.query(
      `update sandboxes s set status = 'deleted', env = case when true then '{}'::jsonb else s.env end where id = $1 returning s.*`,
      [full],
    );
    await database.pool.query(`update sandboxes set env = '{}', egress_policy = null where id = $1`, [full]);
    assert.deepEqual(await newForm(database, full), {
      spec: { ...SPEC, egress_policy: null },
      owner_kind: 'project',
      sized: false,
      env: null,
    });
  });

  it('reads in full what this version writes', async () => {
    await using database = await openFresh();
    await seed(database);
    const spec: NewSandboxSpec = {
      name: 'new',
      region: 'r',
      cpu_arch: 'amd64',
      mode: 'burstable',
      cpu: 0.5,
      vcpus: 2,
      mem_mib: 512,
      scratch_mib: 1024,
      gpu_host: 0,
      docker_data_mib: null,
      ports: PORTS,
      egress_policy: EGRESS,
      persistent: true,
      spot: false,
      env: ENV,
      root: ROOT,
      image_ref: 'busybox',
    };
    const ids = { id: newUuid(), jobId: newUuid(), accessToken: newToken('sandbox') };
    await createSandbox(database.pool, {
      owner: { kind: 'project', projectId: PROJECT },
      spec,
      source: { kind: 'image' },
      ids,
      deadlineMs: 1_000,
    });
    const read = async (): Promise<Record<string, unknown>> => {
      const { rows } = await database.pool.query('select * from sandboxes where id = $1', [ids.id]);
      const { name, vcpus, ports, env, egress_policy, image_ref, root, origin } = rows[0];
      return { name, vcpus, ports, env, egress_policy, image_ref, root, origin };
    };
    const expected = {
      name: 'new',
      vcpus: 2,
      ports: PORTS,
      env: ENV,
      egress_policy: EGRESS,
      image_ref: 'busybox',
      root: ROOT,
    };
    assert.deepEqual(await read(), { ...expected, origin: null });
    assert.deepEqual((await readEnvironments(database.pool, [ids.id])).get(ids.id), ENV);

    const made = SANDBOX_SQL.statement('delete', [{ id: ids.id }], STATE_DEADLINES);
    assert.ok(made);
    const moved = await queryOne(database.pool, made.statement, made.values);
    assert.equal(moved?.status, 'deleted');
    assert.deepEqual(await read(), { ...expected, env: {}, origin: null });
    assert.equal((await readEnvironments(database.pool, [ids.id])).size, 0);
  });

  it('and this one refuse to change the spec of a sandbox that is not deleted', async () => {
    await using database = await openFresh();
    await seed(database);
    const id = await previousCreates(database, {});
    await assert.rejects(
      database.pool.query(`update sandboxes set spec = spec || '{"vcpus": 64}' where id = $1`, [id]),
      /the spec of sandbox .* is immutable/,
    );
  });
});
