/**
 * Three versions of what a sandbox is stored as: `columns` (before migration 0007) knows no spec, no `sandbox_env` and no owner; `both`
 * writes these, and triggers keep the columns equal for a server of `columns` beside it; `spec` has dropped the columns.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import {
  isDatabaseUnavailable,
  migrate,
  openDatabase,
  readMigrations,
  type Database,
} from '@releap/database';
import { emptyDatabase, quiet } from '@releap/testing/postgres';
import { until } from '@releap/testing/eventually';

const DROPS_COLUMNS = 'drop-columns-before-spec';

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

/** The INSERT of `columns`, word for word. */
const INSERT_OF_COLUMNS = `with job as (
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

async function columnsCreates(
  { pool }: Pick<Database, 'pool'>,
  env: object,
  origin: object | null = ORIGIN,
): Promise<string> {
  const id = newUuid();
  // biome-ignore format: one value a parameter, in its order
  await pool.query(INSERT_OF_COLUMNS, [
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

/** What the INSERT of `both` writes. */
const INSERT_OF_BOTH = `with environment as (
     insert into sandbox_env (sandbox_id, env) values ($1, $2)
   )
   insert into sandboxes (id, job_id, project_id, env_bytes, region, status, desired, deadline_at, mode, cpu, mem_mib, scratch_mib,
     persistent, spot, cpu_arch, spec, access_token_hash)
   values ($1, $3, $4, octet_length($2::text), 'r', 'pending', 'running', now() + interval '1 minute', 'burstable', 0.5, 512, 1024,
     true, false, 'amd64', $5, $6)`;

async function bothCreates({ pool }: Pick<Database, 'pool'>): Promise<string> {
  const id = newUuid();
  const values = [id, JSON.stringify(ENV), newUuid(), PROJECT, JSON.stringify(SPEC), Buffer.alloc(32)];
  // Prepared, as servers do it.
  await pool.query({ name: 'insert-of-both', text: INSERT_OF_BOTH, values });
  return id;
}

async function newForm({ pool }: Pick<Database, 'pool'>, id: string): Promise<unknown> {
  const { rows } = await pool.query(
    `select spec, owner_kind, env_bytes > 0 as sized, (select env from sandbox_env where sandbox_id = s.id) as env
       from sandboxes s where id = $1`,
    [id],
  );
  return rows[0];
}

describe('a database of columns', () => {
  it('keeps every sandbox and snapshot when it is migrated', async () => {
    const url = await emptyDatabase();
    const known = await readMigrations();
    await migrate({ url, log: quiet, migrations: known.slice(0, 6) });
    await using database = openDatabase({ url, log: quiet });
    await seed(database);
    const [bare, full] = [await columnsCreates(database, {}), await columnsCreates(database, ENV)];
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

describe('a server of columns, beside one of both,', () => {
  let database: Database;
  before(async () => {
    const url = await emptyDatabase();
    const known = await readMigrations();
    const to = known.findIndex(({ name }) => name === DROPS_COLUMNS);
    await migrate({ url, log: quiet, migrations: known.slice(0, to) });
    database = openDatabase({ url, log: quiet });
    await seed(database);
  });
  after(() => database.close());

  const columnsRead = async (id: string): Promise<Record<string, unknown>> => {
    const { rows } = await database.pool.query('select * from sandboxes where id = $1', [id]);
    const { name, vcpus, ports, env, egress_policy, image_ref, root, origin } = rows[0];
    return { name, vcpus, ports, env, egress_policy, image_ref, root, origin };
  };

  it('writes sandboxes that the other one reads', async () => {
    const [bare, full] = [await columnsCreates(database, {}, null), await columnsCreates(database, ENV)];
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

  it('reads in full what the other one writes', async () => {
    const id = await bothCreates(database);
    const expected = {
      name: 'old',
      vcpus: 2,
      ports: PORTS,
      env: ENV,
      egress_policy: EGRESS,
      image_ref: 'busybox',
      root: ROOT,
      origin: ORIGIN,
    };
    assert.deepEqual(await columnsRead(id), expected);
    // Its transition to `deleted`.
    await database.pool.query(
      `with env as (delete from sandbox_env where sandbox_id = $1) update sandboxes set status = 'deleted', env_bytes = 0 where id = $1`,
      [id],
    );
    assert.deepEqual(await columnsRead(id), { ...expected, env: {} });
  });

  it('refuses to change the spec of a sandbox that is not deleted', async () => {
    const id = await columnsCreates(database, {});
    await assert.rejects(
      database.pool.query(`update sandboxes set spec = spec || '{"vcpus": 64}' where id = $1`, [id]),
      /the spec of sandbox .* is immutable/,
    );
  });
});

describe('the migration that drops the columns', () => {
  it('keeps every sandbox, and servers of both continue to create', async () => {
    const url = await emptyDatabase();
    const known = await readMigrations();
    const to = known.findIndex(({ name }) => name === DROPS_COLUMNS);
    await migrate({ url, log: quiet, migrations: known.slice(0, to) });
    await using database = openDatabase({ url, log: quiet });
    const { pool } = database;
    await seed(database);
    const made = [await columnsCreates(database, ENV), await bothCreates(database)];
    const [bare, gone] = [await columnsCreates(database, {}), await columnsCreates(database, {})];
    await pool.query(`update sandboxes set status = 'deleted' where id = $1`, [gone]);

    const over = new AbortController();
    const server = async (): Promise<void> => {
      while (!over.signal.aborted) {
        try {
          made.push(await bothCreates(database));
        } catch (error) {
          // The migration ends connections.
          if (!isDatabaseUnavailable(error)) throw error;
        }
      }
    };
    const servers = Promise.all([server(), server(), server()]);
    await until(() => made.length > 10);
    assert.deepEqual(await migrate({ url, log: quiet, migrations: known.slice(0, to + 1) }), [to + 1]);
    const count = made.length;
    await Promise.race([servers, until(() => made.length > count + 10)]);
    over.abort();
    await servers;

    for (const id of made)
      assert.deepEqual(await newForm(database, id), {
        spec: SPEC,
        owner_kind: 'project',
        sized: true,
        env: ENV,
      });
    const without = { spec: SPEC, owner_kind: 'project', sized: false, env: null };
    assert.deepEqual(await newForm(database, bare), without);
    const { rows } = await pool.query(
      `select proname as name from pg_proc where proname like 'bridge%' union all select tgname from pg_trigger where tgname like 'bridge%'`,
    );
    assert.deepEqual(rows, []);
    // The rule for specs is as it was.
    const erase = (id: string) =>
      pool.query(`update sandboxes set spec = spec || '{"egress_policy": null}' where id = $1`, [id]);
    await assert.rejects(erase(bare), /the spec of sandbox .* is immutable/);
    await erase(gone);
    assert.deepEqual(await newForm(database, gone), { ...without, spec: { ...SPEC, egress_policy: null } });
  });
});
