/** Writes history into a database, fast: the ended rows of a service that is years old. */
import { Client } from 'pg';

/** Rows a statement, so that progress shows and a statement stays within minutes. */
const CHUNK = 500_000;

/**
 * @param rows deleted sandboxes, finished jobs and charges of use, each; snapshots and audit entries are a tenth of it
 */
export async function fillHistory(
  url: string,
  rows: number,
  progress: (text: string) => void,
): Promise<void> {
  const client = new Client({ connectionString: url });
  await client.connect();
  try {
    // The rows have ended: no meter opens, no balance changes.
    await client.query(
      'set session_replication_role = replica; set statement_timeout = 0; set synchronous_commit = off',
    );
    const { rows: found } = await client.query<{ project: string; org: string; runner: string }>(
      `select p.id as project, p.org_id as org, gen_random_uuid() as runner from projects p limit 1`,
    );
    const [{ project, org, runner } = { project: '', org: '', runner: '' }] = found;
    await client.query(
      `insert into runners (id, region, status, data_url, facts, last_seen_at)
       values ($1, 'here', 'lost', '', '{"arch": "amd64", "cores": 8, "mem_mib": 1, "disk_mib": 1, "gpus": 0}', now() - interval '1 year')`,
      [runner],
    );
    for (let from = 0; from < rows; from += CHUNK) {
      const to = Math.min(rows, from + CHUNK);
      progress(`writing history, ${to} of ${rows}`);
      await client.query(
        `with made as (
           insert into sandboxes (id, project_id, region, status, desired, runner_id, held, job_id, mode, cpu, mem_mib, scratch_mib,
             cpu_arch, spec, access_token_hash, created_at, updated_at, deleted_at)
           select gen_random_uuid(), $1, 'here', 'deleted', 'deleted', $2, false, gen_random_uuid(), 'burstable', 0.125, 1024, 512,
                  'amd64', '{"version": 1, "name": "old", "vcpus": 2, "ports": [], "egress_policy": null, "image_ref": "busybox", "root": {}, "origin": null}',
                  sha256(n::text::bytea), now() - n * interval '1 s', now() - n * interval '1 s', now() - (n % 86400 * 20) * interval '1 s'
             from generate_series($3::integer, $4::integer) n returning id, job_id, created_at
         ), jobs as (
           insert into jobs (id, project_id, kind, status, sandbox_id, runner_id, created_at, finished_at)
           select job_id, $1, 'vm.create', 'done', id, $2, created_at, now() - interval '1 day' from made
         )
         insert into credit_usage (org_id, amount, kind, sandbox_id, region, period_from, period_to)
         select $5, -1000, 'usage', id, 'here', created_at, created_at + interval '1 s' from made`,
        [project, runner, from + 1, to, org],
      );
      await client.query(
        `insert into snapshots (id, project_id, name, kind, status, desired, runner_id, held, job_id, sandbox_id, region, mode,
           cpu, mem_mib, scratch_mib, cpu_arch, spec, updated_at)
         select gen_random_uuid(), $1, gen_random_uuid()::text, 'disk', 'deleted', 'deleted', $2, false, gen_random_uuid(), gen_random_uuid(), 'here',
                'burstable', 1, 1, 1, 'amd64', '{}', now() - interval '1 day' from generate_series($3::integer, $4::integer, 10)`,
        [project, runner, from + 1, to],
      );
      await client.query(
        `insert into audit_log (id, org_id, actor_kind, action, target_kind, target_id, outcome, created_at)
         select gen_random_uuid(), $1, 'system', 'x', 'y', 'z', 'done', now() - n * interval '1 s' from generate_series($2::integer, $3::integer, 10) n`,
        [org, from + 1, to],
      );
    }
    progress('vacuum analyze');
    await client.query('set session_replication_role = origin');
    await client.query('vacuum analyze');
  } finally {
    await client.end();
  }
}
