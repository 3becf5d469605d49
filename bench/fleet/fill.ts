/** Writes a live fleet into a database: what a deployment holds at a time, not its history. */
import type { Database } from '@releap/database';

export interface Fleet {
  organizations: number;
  /** Held by hosts, all of them running. */
  sandboxes: number;
}

/** Rows a statement, so that a statement stays within its time limit. */
const CHUNK = 2_000;

/**
 * Each organization has one project and its share of the sandboxes; the hosts take them in turns.
 * @param runnerIds the hosts, which are connected already
 */
export async function fillFleet(
  { pool }: Pick<Database, 'pool'>,
  { organizations, sandboxes }: Fleet,
  runnerIds: readonly string[],
  progress: (text: string) => void,
): Promise<void> {
  const { rows: projects } = await pool.query<{ id: string }>(
    `with org as (insert into organizations (id, name) select gen_random_uuid(), 'one' from generate_series(1, $1::integer) returning id)
     insert into projects (id, org_id, name) select gen_random_uuid(), id, 'one' from org returning id`,
    [organizations],
  );
  await pool.query('analyze organizations, projects');
  let analyzed = 0;
  for (let from = 0; from < sandboxes; from += CHUNK) {
    const to = Math.min(sandboxes, from + CHUNK);
    progress(`writing the fleet, ${to} of ${sandboxes}`);
    await pool.query(
      `insert into sandboxes (id, project_id, region, status, desired, runner_id, held, job_id, mode, cpu, mem_mib, scratch_mib,
         persistent, spot, cpu_arch, spec, access_token_hash, manifest_name, created_at)
       select gen_random_uuid(), ($1::uuid[])[1 + n % array_length($1, 1)], 'local', 'running', 'running',
              ($2::uuid[])[1 + n % array_length($2, 1)], true, gen_random_uuid(), case n % 10 when 0 then 'dedicated' else 'burstable' end,
              0.125, 1024, 512, n % 2 = 0, n % 5 = 1, 'amd64',
              '{"version": 1, "name": "live", "vcpus": 2, "ports": [], "egress_policy": null, "image_ref": "busybox", "root": {}, "origin": null}',
              sha256(n::text::bytea), 'sha256:live', now() - n * interval '1 s'
         from generate_series($3::integer, $4::integer) n`,
      [projects.map(({ id }) => id), runnerIds, from + 1, to],
    );
    // Quotas are counted while sandboxes are written: not by a plan for a small table.
    if (to < 2 * analyzed) continue;
    await pool.query('analyze sandboxes');
    analyzed = to;
  }
  progress('vacuum analyze');
  await pool.query('vacuum analyze');
}
