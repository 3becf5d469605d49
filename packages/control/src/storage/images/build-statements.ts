/** The SQL of image builds: rows of `jobs` that are leased to a runner. */
import type { RootSource } from '@releap/contract';
import { statement } from '@releap/database';
import { JOB_EVENTS } from '../../platform/lifecycle/jobs.ts';
import { SKIP_LOCKED, WorkTable } from '../../platform/work/work-table.ts';
import { IMAGE_EVENTS } from './transitions.ts';

export interface BuildRow {
  id: string;
  attempts: number;
  status: string;
  runner_id: string;
  image_id: string;
  project_id: string | null;
  payload: { root: RootSource; docker: boolean };
}

const COLUMNS = 'id, attempts, status, runner_id, image_id, project_id, payload';

/** One attempt to build: the runner that has it, too, is part of the fence, since what it reports names an attempt. */
export interface BuildAttempt {
  id: string;
  attempts: number;
  runner_id: string;
}

/** An expired build is leased to another runner as it is. */
export const BUILDS = new WorkTable<BuildAttempt>({
  name: 'builds',
  table: 'jobs',
  key: { id: 'uuid' },
  fence: { attempts: 'integer', runner_id: 'uuid' },
  attempt: 'attempts',
  claimed: `w.kind = 'build' and w.status = 'running'`,
});
/** $1 attempts. Also a partial index's condition: `jobs_queue`. */
const leasable = (
  attempts: string,
): string => `w.kind = 'build' and w.run_after <= now() and w.attempts < ${attempts}
  and (w.status = 'queued' or (w.status = 'running' and w.lease_until <= now()))`;

/**
 * What may be leased. Organizations take turns, and in each its projects: the first builds of all of them come before the second of
 * any, and builds under way count as turns that were taken. A project has at most so many under way; the service's own are not limited.
 * `previous_runner_id`: where the image was built before, whose caches have most of it. $1 attempts, $2 regions, $3 rows, $4 builds of a project
 */
export const WAITING = statement<{
  id: string;
  /** Null: the service's own. */
  org_id: string | null;
  /** Builds under way of its organization. */
  org_builds: number;
  region: string | null;
  dockerfile: boolean;
  docker: boolean;
  previous_runner_id: string | null;
}>(
  'builds-waiting',
  `with busy as (
     select j.project_id, p.org_id, count(*) as builds from jobs j left join projects p on p.id = j.project_id
      where ${BUILDS.leased('j')} group by j.project_id, p.org_id
   ), busy_orgs as (
     select org_id, sum(builds)::integer as builds from busy where org_id is not null group by org_id
   ), waiting as (
     select w.id, w.project_id, p.org_id, w.image_id, i.region, w.run_after, w.payload -> 'root' ->> 'type' = 'dockerfile' as dockerfile,
            coalesce((w.payload ->> 'docker')::boolean, false) as docker, coalesce(b.builds, 0) + row_number() over (partition by w.project_id order by w.run_after, w.id) as turn
       from jobs w left join images i on i.id = w.image_id left join projects p on p.id = w.project_id
       left join busy b on b.project_id is not distinct from w.project_id
      where w.status in ('queued', 'running') and ${leasable('$1')} and (i.region is null or i.region = any($2::text[]))
   ), turns as (
     select w.*, coalesce(o.builds, 0) as org_builds,
            coalesce(o.builds, 0) + row_number() over (partition by w.org_id order by w.turn, w.run_after, w.id) as org_turn
       from waiting w left join busy_orgs o on o.org_id = w.org_id
      where w.project_id is null or w.turn <= $4
   )
   select w.id, w.org_id, w.org_builds, w.region, w.dockerfile, w.docker, before.runner_id as previous_runner_id
     from (select * from turns order by (project_id is null) desc, org_turn, run_after, id limit $3) w
     left join lateral (
       select runner_id from jobs where image_id = w.image_id and id <> w.id and runner_id is not null
        order by created_at desc limit 1
     ) before on true
    order by (w.project_id is null) desc, w.org_turn, w.run_after, w.id`,
);

/** Builds under way of these runners. $1 runners */
export const BUSY = statement<{ runner_id: string; builds: number }>(
  'builds-busy',
  `select runner_id, count(*)::integer as builds from jobs w
    where ${BUILDS.leased('w')} and runner_id = any($1::uuid[]) group by runner_id`,
);

/** Leases each to its runner, unless another server has. $1 milliseconds, $2 attempts, $3 jobs, $4 runners */
export const LEASE = BUILDS.claiming<BuildAttempt>('lease', {
  pick: `select w.id, t.runner_id from jobs w join unnest($3::uuid[], $4::uuid[]) as t(id, runner_id) on t.id = w.id
      where ${leasable('$2')} ${SKIP_LOCKED}`,
  set: `${JOB_EVENTS.sets('w', 'begin')}, runner_id = p.runner_id, updated_at = now()`,
});

/** $1 runner, $2 id, $3 rows */
export const PAGE = statement<BuildRow>(
  'build-assignment-page',
  `select ${COLUMNS} from jobs
    where kind = 'build' and status = 'running' and runner_id = $1 and id > $2 order by id limit $3`,
);

/** $1 ids */
export const BY_ID = statement<BuildRow>(
  'build-assignments-by-id',
  `select ${COLUMNS} from jobs where kind = 'build' and id = any($1::uuid[])`,
);

/** $1 runners, $2 id, $3 rows */
export const GENERATIONS = statement<{ id: string; runner_id: string; generation: number }>(
  'build-generations',
  `select id, runner_id, attempts as generation from jobs
    where kind = 'build' and status = 'running' and runner_id = any($1::uuid[]) and id > $2 order by id limit $3`,
);

/**
 * The job ends, and its image with it unless a newer build has replaced this one. After a failure the image keeps what it
 * was built to before. $1 to $3 attempt, $4 error, $5 manifest, $6 layers, $7 bytes, $8 end of the log
 */
export const FINISH = BUILDS.changing<{ id: string }>('finish', {
  set: `${JOB_EVENTS.sets('w', { finish: '$4::text is null', fail: 'true' })}, error = $4,
            finished_at = now(), updated_at = now(), lease_until = null, log_tail = $8`,
  returning: 'w.id, w.image_id',
  rest: `, built as (
     update images i set ${IMAGE_EVENTS.sets('i', { built: '$4::text is null', fail: 'true' })}, error = $4, updated_at = now(),
            manifest_name = case when $4::text is null then $5 else i.manifest_name end,
            layer_count = case when $4::text is null then $6 else i.layer_count end,
            bytes = case when $4::text is null then $7 else i.bytes end,
            built_at = case when $4::text is null then now() else i.built_at end,
            previous_root = case when $4::text is null then null else i.previous_root end
       from changed e where i.id = e.image_id and i.job_id = e.id and ${IMAGE_EVENTS.allows('i', 'built', 'fail')} returning i.id
   )
   select id from changed`,
});

/** Ends the leases of this runner, so that another can take over at once. $1 runner */
export const TAKE_BACK = BUILDS.sweeping<{ id: string }>('take-back', {
  pick: `select w.id from jobs w where ${BUILDS.leased('w')} and w.runner_id = $1 order by w.id for update of w`,
  set: 'lease_until = now(), updated_at = now()',
});

/** Assignments that fail a build. @param error SQL */
export const fails = (error: string): string =>
  `${JOB_EVENTS.sets('w', 'fail')}, error = ${error}, finished_at = now(), updated_at = now(), lease_until = null`;

/** Fails the builds of these images that have not ended. @param images a CTE with their ids */
export const failBuildsOf = (images: string, error: string): string =>
  `update jobs j set ${fails(`'${error}'`)} from ${images} i where j.image_id = i.id and ${JOB_EVENTS.allows('j', 'fail')}`;

/** What has failed without the report of a runner, over the choice `p` with its `error`. */
const FAILING = {
  set: fails('p.error'),
  returning: 'w.id, w.image_id, w.error',
  rest: `, built as (
     update images i set ${IMAGE_EVENTS.sets('i', 'fail')}, error = e.error, updated_at = now()
       from changed e where i.id = e.image_id and i.job_id = e.id and ${IMAGE_EVENTS.allows('i', 'fail')}
   )
   select id, error from changed`,
};

/** Builds that are out of attempts or too old. $1 attempts, $2 milliseconds */
export const OVERDUE = BUILDS.sweeping<{ id: string; error: string }>('overdue', {
  ...FAILING,
  pick: `select w.id,
            case when w.created_at < now() - $2 * interval '1 millisecond'
                   then 'the build took longer than ' || ($2 / 60000) || ' minutes, including the wait for a host'
                 else 'the host that built it was lost ' || w.attempts || ' times' end as error
       from jobs w
      where w.kind = 'build' and (
              (w.status in ('queued', 'running') and w.created_at < now() - $2 * interval '1 millisecond')
           or (${BUILDS.expired('w')} and w.attempts >= $1)) ${SKIP_LOCKED}`,
});

/**
 * Builds of Dockerfiles that no host of their region can run, whether it is connected or not, although some host of it is
 * connected. $1 capability, $2 milliseconds that they wait for one to connect
 */
export const UNBUILDABLE = BUILDS.sweeping<{ id: string; error: string }>('unbuildable', {
  ...FAILING,
  pick: `select w.id, 'no host of region "' || i.region || '" builds Dockerfiles (RELEAP_BUILDS is 0)' as error
       from jobs w join images i on i.id = w.image_id
      where w.kind = 'build' and w.status = 'queued' and w.payload -> 'root' ->> 'type' = 'dockerfile'
        and w.run_after < now() - $2 * interval '1 millisecond'
        and exists (select 1 from runners r where r.region = i.region and r.status = 'online' and r.forgotten_at is null)
        and not exists (
          select 1 from runners r
           where r.region = i.region and r.forgotten_at is null
             and (r.capabilities is null or $1 = any(r.capabilities))) ${SKIP_LOCKED}`,
});

export const RETRY_BUILTINS = statement<{ id: string }>(
  'build-retry-builtins',
  `with again as (
     update images i set ${IMAGE_EVENTS.sets('i', 'retry')}, error = null, job_id = gen_random_uuid(), updated_at = now()
      where project_id is null and ${IMAGE_EVENTS.allows('i', 'retry')} returning i.*
   )
   insert into jobs (id, kind, status, image_id, payload)
   select job_id, 'build', 'queued', id, jsonb_build_object('root', source, 'docker', docker) from again returning id`,
);
