/**
 * Builds of images: rows of `jobs` that are leased to a runner. The attempt is the fencing token: the answer
 * of a runner whose lease was given to another is ignored.
 */
import type { BuildJob, BuildResult, RootSource } from '@releap/contract';
import { all, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { ControlLimits } from '../limits.ts';
import type { PullCredentials } from '../registries/pull-credentials.ts';
import type { Link } from '../runners/link.ts';
import { readReason } from '../runners/messages.ts';

export interface BuildQueue {
  /** There may be something to build, or somebody to build it. */
  kick(): void;
  finish(link: Link, result: BuildResult): Promise<void>;
  /** A runner is back: what it was building is its own again, and told again in case that it has forgotten. */
  adopt(link: Link): Promise<void>;
  /** The link of a runner is closed: its leases run out unless it comes back in time. */
  abandon(link: Link): void;
  /** Built-in images that could not be made get another try. */
  retryBuiltins(): Promise<void>;
  /** Extends the leases of connected runners and ends what is overdue. */
  sweep(): Promise<void>;
  close(): Promise<void>;
}

interface LeaseRow {
  id: string;
  attempts: number;
  image_id: string;
  project_id: string | null;
  payload: { root: RootSource; docker: boolean };
}

const LEASE = statement<LeaseRow>(
  'build-lease',
  `update jobs set status = 'running', attempts = attempts + 1, runner_id = $1, updated_at = now(),
          lease_until = now() + $3 * interval '1 millisecond'
    where id = (
      select j.id from jobs j left join images i on i.id = j.image_id
       where j.kind = 'build' and j.run_after <= now() and j.attempts < $4
         and (j.status = 'queued' or (j.status = 'running' and j.lease_until < now()))
         and (i.region is null or i.region = $2)
       order by j.run_after limit 1 for update of j skip locked
    )
   returning id, attempts, image_id, project_id, payload`,
);

/** $1 runner, $2 milliseconds */
const ADOPT = statement<LeaseRow>(
  'build-adopt',
  `update jobs set lease_until = now() + $2 * interval '1 millisecond'
    where kind = 'build' and status = 'running' and runner_id = $1
   returning id, attempts, image_id, project_id, payload`,
);

/** The job ends, and its image with it unless a newer build has replaced this one. $1 job, $2 attempt, $3 runner, $4 error, $5 manifest, $6 layers */
const FINISH = statement<{ id: string }>(
  'build-finish',
  `with ended as (
     update jobs set status = case when $4::text is null then 'done' else 'failed' end, error = $4,
            finished_at = now(), updated_at = now(), lease_until = null
      where id = $1 and attempts = $2 and runner_id = $3 and status = 'running' returning id, image_id
   ), built as (
     update images i set status = case when $4::text is null then 'ready' else 'failed' end, error = $4,
            manifest_name = $5, layer_count = $6, updated_at = now()
       from ended e where i.id = e.image_id and i.job_id = e.id returning i.id
   )
   select id from ended`,
);

const EXTEND = statement(
  'build-extend',
  `update jobs j set lease_until = now() + $3 * interval '1 millisecond'
     from unnest($1::uuid[], $2::integer[]) as t(id, attempt)
    where j.id = t.id and j.attempts = t.attempt and j.status = 'running'`,
);

/** Given out often enough, or too old: failed for good. $1 attempts, $2 milliseconds */
const OVERDUE = statement<{ id: string; error: string }>(
  'build-overdue',
  `with ended as (
     update jobs set status = 'failed', finished_at = now(), updated_at = now(), lease_until = null,
            error = case when created_at < now() - $2 * interval '1 millisecond'
                           then 'the build took longer than ' || ($2 / 60000) || ' minutes, with the wait for a host'
                         else 'the host that built it went away ' || attempts || ' times' end
      where kind = 'build' and (
              (status in ('queued', 'running') and created_at < now() - $2 * interval '1 millisecond')
           or (status = 'running' and lease_until < now() and attempts >= $1))
      returning id, image_id, error
   ), built as (
     update images i set status = 'failed', error = e.error, updated_at = now()
       from ended e where i.id = e.image_id and i.job_id = e.id
   )
   select id, error from ended`,
);

const RETRY_BUILTINS = statement<{ id: string }>(
  'build-retry-builtins',
  `with again as (
     update images i set status = 'pending', error = null, job_id = gen_random_uuid(), updated_at = now()
      where project_id is null and status = 'failed' returning i.*
   )
   insert into jobs (id, kind, status, image_id, payload)
   select job_id, 'build', 'queued', id, jsonb_build_object('root', source, 'docker', docker) from again returning id`,
);

export interface BuildQueueOptions {
  database: Database;
  credentials: PullCredentials;
  limits: ControlLimits;
  log: Logger;
  links: () => Link[];
}

export function createBuildQueue(options: BuildQueueOptions): BuildQueue {
  const { database, credentials, limits, log, links } = options;
  let running: Promise<void> | undefined;
  let again = false;
  const stop = new AbortController();

  async function tell(link: Link, row: LeaseRow): Promise<void> {
    // Counted from here on, so that no other is given in its place meanwhile.
    link.builds.set(row.id, row.attempts);
    const { project_id, payload } = row;
    const [unlocked] = await credentials
      .unlock([{ project_id, root: payload.root }])
      .catch((error: unknown) => {
        link.builds.delete(row.id);
        throw error;
      });
    // Closed in the meantime: the lease runs out and another gets it.
    if (link.closed) return;
    const job: BuildJob = {
      job_id: row.id,
      attempt: row.attempts,
      image_id: row.image_id,
      root: unlocked?.root ?? payload.root,
      docker: payload.docker,
    };
    link.send({ type: 'build', job });
  }

  async function give(link: Link): Promise<boolean> {
    const [row] = await all(database.pool, LEASE, [
      link.runnerId,
      link.region,
      limits.buildLeaseMs,
      limits.buildAttempts,
    ]);
    if (row === undefined) return false;
    await tell(link, row);
    return true;
  }

  async function deal(): Promise<void> {
    do {
      again = false;
      for (const link of links()) {
        while (
          !stop.signal.aborted &&
          link.ready &&
          !link.closed &&
          link.builds.size < limits.buildsPerRunner
        ) {
          if (!(await give(link))) break;
        }
      }
    } while (again && !stop.signal.aborted);
  }

  const kick = (): void => {
    if (stop.signal.aborted) return;
    again = true;
    running ??= deal()
      .catch((error: unknown) => log.error({ err: error }, 'builds could not be given out'))
      .finally(() => {
        running = undefined;
        if (again) kick();
      });
  };

  return {
    kick,
    async adopt(link) {
      for (const row of await all(database.pool, ADOPT, [link.runnerId, limits.buildLeaseMs]))
        await tell(link, row);
      kick();
    },
    async finish(link, result) {
      const error =
        result.error === undefined ? null : (readReason(result.error) ?? 'its host gave no reason');
      const ended = await all(database.pool, FINISH, [
        result.job_id,
        result.attempt,
        link.runnerId,
        error,
        error === null ? (result.manifest_name ?? null) : null,
        error === null ? (result.layer_count ?? null) : null,
      ]);
      if (link.builds.get(result.job_id) === result.attempt) link.builds.delete(result.job_id);
      log.info(
        { job: result.job_id, attempt: result.attempt, error, counted: ended.length === 1 },
        'a build has ended',
      );
      kick();
    },
    abandon(link) {
      link.builds.clear();
    },
    async retryBuiltins() {
      if ((await all(database.pool, RETRY_BUILTINS)).length > 0) kick();
    },
    async sweep() {
      const held = links().flatMap((link) => [...link.builds]);
      if (held.length > 0) {
        await all(database.pool, EXTEND, [
          held.map(([id]) => id),
          held.map(([, attempt]) => attempt),
          limits.buildLeaseMs,
        ]);
      }
      for (const { id, error } of await all(database.pool, OVERDUE, [
        limits.buildAttempts,
        limits.buildDeadlineMs,
      ])) {
        log.warn({ job: id, reason: error }, 'a build was given up');
        for (const link of links()) link.builds.delete(id);
      }
      kick();
    },
    async close() {
      stop.abort();
      await running;
    },
  };
}
