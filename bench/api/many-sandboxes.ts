/** Databases with many sandboxes, for suites that measure what the control plane does for all of them. */
import { newUuid } from '@releap/contract';
import { migrate, openDatabase, type Database, type PostgresInstance } from '@releap/database';
import { pino } from 'pino';
import { cpuSeconds, family } from '../processes.ts';

const log = pino({ level: 'silent' });

/** A migrated database. */
export async function fresh(postgres: PostgresInstance, name: string): Promise<Database> {
  const admin = openDatabase({ url: postgres.url(), log, connections: 1 });
  await admin.pool.query(`create database ${name}`);
  await admin.close();
  const url = postgres.url(name);
  await migrate({ url, log });
  return openDatabase({ url, log, connections: 4, statementTimeoutMs: 300_000 });
}

/** Projects, each of an organization of its own. */
export async function writeProjects(pool: Database['pool'], count: number): Promise<void> {
  await pool.query(
    `insert into organizations (id, name) select gen_random_uuid(), 'one' from generate_series(1, $1::integer)`,
    [count],
  );
  await pool.query(
    `insert into projects (id, org_id, name) select gen_random_uuid(), id, 'one' from organizations`,
  );
}

/** So many running ones in each project. @returns the host that they are on */
export async function writeSandboxes(pool: Database['pool'], perProject: number): Promise<string> {
  const runnerId = newUuid();
  await pool.query(`insert into regions (id, name) values ('local', 'local')`);
  await pool.query(
    `insert into runners (id, region, status, data_url, facts, last_seen_at) values ($1, 'local', 'online', '', '{}', now() + interval '1 year')`,
    [runnerId],
  );
  await pool.query(
    `insert into sandboxes (id, project_id, region, status, desired, job_id, mode, cpu, mem_mib, scratch_mib, cpu_arch,
       spec, access_token_hash, runner_id, held)
     select gen_random_uuid(), p.id, 'local', 'running', 'running', gen_random_uuid(), 'burstable', 0.125, 1024, 512, 'amd64',
       '{"version": 1, "name": "one", "vcpus": 2, "ports": [], "egress_policy": null, "image_ref": "busybox", "root": {}, "origin": null}',
       sha256('x'), $1, true from projects p, generate_series(1, $2::integer)`,
    [runnerId, perProject],
  );
  return runnerId;
}

/** Processor time of what a function does here and in the database, in percent of a core for a minute. */
export function processorTime(
  postgres: PostgresInstance,
  { pool }: Pick<Database, 'pool'>,
): (work: () => Promise<void>) => Promise<number> {
  return async (work) => {
    // The connection that the work will use: idle ones are closed after some seconds.
    await pool.query('select 1');
    const backends = await family(postgres.pid);
    const spent = async (): Promise<number> => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1e6 + (await cpuSeconds(backends.map(({ pid }) => pid)));
    };
    const before = await spent();
    await work();
    return ((await spent()) - before) / 0.6;
  };
}
