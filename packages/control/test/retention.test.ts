/** Data that grows with time: partitions, and the purge of ended rows. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { openFresh, quiet } from '@releap/testing/postgres';
import { ledgerPartitions } from '../src/platform/retention/module.ts';
import { JOIN_TOKEN_PURGE } from '../src/platform/credentials/join-tokens.ts';
import { dropPartitions, makePartitions } from '../src/platform/retention/partitions.ts';
import { JOB_PURGE } from '../src/compute/jobs/module.ts';
import { SANDBOX_PURGE } from '../src/compute/sandboxes/module.ts';
import { SNAPSHOT_PURGE } from '../src/compute/snapshots/module.ts';
import { purgeLostRunners } from '../src/fleet/runners/purge.ts';
import { purgeEnded } from '../src/platform/retention/purge.ts';
import { INVITATION_PURGE } from '../src/tenancy/management/module.ts';
import { newOrg, newRunner, newSandbox, setStatus, specJson } from './support/billing.ts';

const database = await openFresh();

const DAYS = 30;
const never = new AbortController().signal;
const count = async (table: string, id: string): Promise<number> =>
  (await database.pool.query(`select 1 from ${table} where id = $1`, [id])).rowCount ?? 0;
const deletedFor = async (projectId: string, days: number, assigned = false): Promise<string> => {
  const id = await newSandbox(database, projectId);
  await setStatus(database, id, 'deleted');
  await database.pool.query(
    `update sandboxes set held = $3, deleted_at = now() - $2 * interval '1 day' where id = $1`,
    [id, days, assigned],
  );
  return id;
};
const snapshotOf = async (
  sandboxId: string,
  projectId: string,
  status: string,
  days: number,
): Promise<string> => {
  const id = newUuid();
  const runnerId = await newRunner(database);
  await database.pool.query(
    `insert into snapshots (id, project_id, name, kind, status, desired, runner_id, held, job_id, sandbox_id, region,
       spec, mode, cpu, mem_mib, scratch_mib, cpu_arch, updated_at)
     values ($1, $2, gen_random_uuid()::text, 'full', $3, 'ready', $4, false, $1, $5, 'here', $7, 'burstable', 1, 1, 1, 'amd64',
       now() - $6 * interval '1 day')`,
    [id, projectId, status, runnerId, sandboxId, days, specJson({ name: null })],
  );
  return id;
};

const PURGES = [SNAPSHOT_PURGE, SANDBOX_PURGE, JOB_PURGE, INVITATION_PURGE, JOIN_TOKEN_PURGE];

describe('the purge of ended rows', () => {
  it('removes deleted sandboxes after their time, with their placeholders, and keeps all others', async () => {
    const { projectId } = await newOrg(database);
    const old = await deletedFor(projectId, DAYS + 1);
    const young = await deletedFor(projectId, DAYS - 1);
    const assigned = await deletedFor(projectId, DAYS + 1, true);
    const running = await newSandbox(database, projectId);
    const failed = await newSandbox(database, projectId);
    await setStatus(database, failed, 'failed');
    const secret = newUuid();
    await database.pool.query(
      `insert into secrets (id, project_id, name, key_id, envelope) values ($1, $2, 'S', 'k', '')`,
      [secret, projectId],
    );
    await database.pool.query(
      `insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name) values ($1, sha256('x'), $2, 'S')`,
      [old, secret],
    );
    assert.deepEqual(await purgeEnded(database, PURGES, DAYS, never), { sandboxes: 1 });
    assert.equal(await count('sandboxes', old), 0);
    for (const id of [young, assigned, running, failed]) assert.equal(await count('sandboxes', id), 1);
    const { rowCount } = await database.pool.query('select 1 from sandbox_secrets where sandbox_id = $1', [
      old,
    ]);
    assert.equal(rowCount, 0);
  });

  it('keeps the source of a snapshot, whose secrets a restore needs, until the snapshot is gone', async () => {
    const { projectId } = await newOrg(database);
    const source = await deletedFor(projectId, DAYS + 1);
    const ready = await snapshotOf(source, projectId, 'ready', DAYS + 1);
    const failed = await snapshotOf(source, projectId, 'failed', DAYS + 1);
    assert.deepEqual(await purgeEnded(database, PURGES, DAYS, never), { snapshots: 1 });
    assert.deepEqual([await count('snapshots', failed), await count('sandboxes', source)], [0, 1]);
    await database.pool.query(`update snapshots set status = 'deleted' where id = $1`, [ready]);
    assert.deepEqual(await purgeEnded(database, PURGES, DAYS, never), { snapshots: 1, sandboxes: 1 });
  });

  it('removes finished jobs, past invitations, expired join tokens and lost hosts that hold nothing, in bounded batches', async () => {
    const { projectId, orgId } = await newOrg(database);
    await database.pool.query(
      `insert into jobs (id, project_id, kind, status, finished_at)
       select gen_random_uuid(), $1, 'vm.create', 'done', now() - (n - 0.5) * interval '1 day' from generate_series(1, 40) n`,
      [projectId],
    );
    await database.pool.query(
      `insert into jobs (id, project_id, kind, status) values (gen_random_uuid(), $1, 'vm.create', 'running')`,
      [projectId],
    );
    const user = newUuid();
    await database.pool.query(
      `insert into users (id, issuer, subject, email, name) values ($1, 'i', $2, '', '')`,
      [user, user],
    );
    await database.pool.query(
      `insert into invitations (id, org_id, email, email_key, role, invited_by, expires_at)
       select gen_random_uuid(), $1, n::text, n::text, 'member', $2, now() - (n - 0.5) * interval '1 day' from generate_series(29, 32) n`,
      [orgId, user],
    );
    await database.pool.query(
      `insert into join_tokens (id, digest, uses, uses_left, expires_at)
       select gen_random_uuid(), sha256(n::text::bytea), 1, 1, now() - (n - 0.5) * interval '1 day' from generate_series(28, 33) n`,
    );
    const lost = await newRunner(database, new Date(Date.now() - (DAYS + 1) * 86_400_000));
    const kept = await newRunner(database, new Date(Date.now() - (DAYS + 1) * 86_400_000));
    await newSandbox(database, projectId, { runnerId: kept });
    await database.pool.query(`update runners set status = 'lost' where id = any($1)`, [[lost, kept]]);
    const removed = await purgeEnded(database, PURGES, DAYS, never, 4);
    assert.deepEqual([removed['jobs'], removed['invitations'], removed['join-tokens']], [10, 2, 3]);
    assert.equal(await purgeLostRunners(database, DAYS), 1);
    assert.deepEqual([await count('runners', lost), await count('runners', kept)], [0, 1]);
  });
});

describe('partitions', () => {
  const partitions = async (parent: string): Promise<string[]> =>
    (
      await database.pool.query<{ name: string }>(
        'select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::regclass order by 1',
        [parent],
      )
    ).rows.map((row) => row.name);

  it('exist for this month and the next two, and creating them again changes nothing', async () => {
    const before = await partitions('credit_usage');
    assert.ok(before.length >= 5, before.join());
    await makePartitions(database, ledgerPartitions(0), quiet);
    assert.deepEqual(await partitions('credit_usage'), before);
  });

  it('take what is written now, and refuse changes under each of their names', async () => {
    const { orgId } = await newOrg(database);
    await database.pool.query(
      `insert into audit_log (id, org_id, actor_kind, action, target_kind, target_id, outcome)
       values (gen_random_uuid(), $1, 'system', 'x', 'y', 'z', 'done')`,
      [orgId],
    );
    await database.pool.query(
      `insert into credit_usage (org_id, amount, kind, sandbox_id, period_from, period_to)
       select $1, -1, 'usage', gen_random_uuid(), at, at + interval '1 s' from unnest(array[now(), '2001-01-01'::timestamptz]) at`,
      [orgId],
    );
    for (const table of [
      'audit_log',
      ...(await partitions('audit_log')),
      ...(await partitions('credit_usage')),
    ])
      await assert.rejects(database.pool.query(`delete from ${table}`), /append-only/, table);
    // Written past the parent, an entry still changes the balance.
    await database.pool.query(
      `insert into credit_usage_default (org_id, amount, kind, sandbox_id, period_from, period_to)
       values ($1, -1, 'burst', gen_random_uuid(), '2001-01-01', '2001-01-02')`,
      [orgId],
    );
    const { rows } = await database.pool.query('select balance from credit_accounts where org_id = $1', [
      orgId,
    ]);
    assert.deepEqual(rows, [{ balance: '-3' }]);
  });

  it('of the audit log are dropped when their time is over, and no others', async () => {
    await database.pool.query(
      `select make_month_partition('audit_log', (now() + interval '1 year')::date - 1)`,
    );
    const before = await partitions('audit_log');
    await dropPartitions(database, ledgerPartitions(365), quiet);
    assert.deepEqual(await partitions('audit_log'), before);
    // As if two years had passed since the first one ended.
    await dropPartitions(database, ledgerPartitions(-800), quiet);
    assert.deepEqual(await partitions('audit_log'), ['audit_log_default']);
  });
});
