/**
 * What is left of a project after its deletion goes away here, in the background, step by step. The project's row
 * says that there is something to do, so it is gone on with after any crash, by any control server.
 */
import { all, statement, type Database, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';

export interface TeardownContext {
  database: Database;
  lifecycle: Lifecycle;
  snapshots: Snapshots;
}

/** One kind of thing in a project. */
export interface TeardownStep {
  what: string;
  /**
   * Takes away what it can now. May be repeated, and may be ended anywhere.
   * @returns how many are still there (at least one if any)
   */
  run(context: TeardownContext, projectId: string): Promise<number>;
}

const BATCH = 200;

const LIVE_SANDBOXES = statement<{ id: string }>(
  'teardown-sandboxes',
  `select id from sandboxes where project_id = $1 and status not in ('deleting', 'deleted') limit ${BATCH}`,
);

/** Those that no other descends from any more. */
const LEAF_SNAPSHOTS = statement<{ id: string }>(
  'teardown-snapshots',
  `select s.id from snapshots s where s.project_id = $1 and s.status <> 'deleted'
      and not exists (select 1 from snapshots c where c.parent_id = s.id and c.status <> 'deleted') limit ${BATCH}`,
);
const SNAPSHOT_REMAINS = statement(
  'teardown-snapshot-remains',
  `(select 1 from snapshots where project_id = $1 and status <> 'deleted' limit 1)
   union all (select 1 from snapshots where project_id = $1 and held limit 1)`,
);

/** A step that one statement does; every row it gives is one more thing that is still there. */
function simple(what: string, text: string): TeardownStep {
  const run = statement(`teardown-${what}`, text);
  return {
    what,
    run: async ({ database }, projectId) => (await all(database.pool, run, [projectId])).length,
  };
}

/** In this order. A resource that a project can have gets its line here. */
export const TEARDOWN_STEPS: readonly TeardownStep[] = [
  simple(
    'api-keys',
    'with gone as (update api_keys set revoked_at = now() where project_id = $1 and revoked_at is null) select 1 where false',
  ),
  simple(
    'builds',
    `with gone as (
       update jobs set status = 'failed', error = 'its project was deleted', finished_at = now(), updated_at = now(),
              lease_until = null
        where project_id = $1 and kind = 'build' and status in ('queued', 'running'))
     select 1 where false`,
  ),
  {
    what: 'sandboxes',
    async run({ database, lifecycle }, projectId) {
      const rows = await all(database.pool, LIVE_SANDBOXES, [projectId]);
      await lifecycle.apply(
        'delete',
        rows.map(({ id }) => ({ id, project_id: projectId })),
      );
      return 0;
    },
  },
  {
    what: 'snapshots',
    async run({ database, snapshots }, projectId) {
      const rows = await all(database.pool, LEAF_SNAPSHOTS, [projectId]);
      await snapshots.apply('delete', rows);
      return (await all(database.pool, SNAPSHOT_REMAINS, [projectId])).length;
    },
  },
  // Until their hosts have said so, something may be left of them there.
  simple(
    'sandbox-remains',
    `(select 1 from sandboxes where project_id = $1 and status <> 'deleted' limit 1)
     union all (select 1 from sandboxes where project_id = $1 and held limit 1)`,
  ),
  // The sandboxes that used them have ended.
  simple(
    'secrets',
    `with unused as (delete from sandbox_secrets where secret_id in (select id from secrets where project_id = $1)),
          gone as (delete from secrets where project_id = $1)
     select 1 where false`,
  ),
  simple(
    'registry-credentials',
    'with gone as (delete from registry_credentials where project_id = $1) select 1 where false',
  ),
  simple('images', 'with gone as (delete from images where project_id = $1) select 1 where false'),
  // The records of what ran stay, for the organization's books, without what its users put in.
  simple(
    'environments',
    `with ended as (
       select id from sandboxes where project_id = $1 and status = 'deleted'
          and (env_bytes > 0 or spec -> 'egress_policy' <> 'null') limit 1000
     ), gone as (delete from sandbox_env where sandbox_id in (select id from ended))
     update sandboxes set env_bytes = 0, spec = spec || '{"egress_policy": null}' where id in (select id from ended)
     returning 1`,
  ),
];

const FINISH = statement(
  'teardown-finish',
  'update projects set teardown_after = null, torn_down_at = now() where id = $1 and teardown_after is not null',
);

/**
 * A request that was let in before the deletion may write something after it. Requests must have arrived within a
 * minute, and no statement takes longer than seconds.
 */
export const TEARDOWN_GRACE_MS = 120_000;
const LEASE_MS = 30_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 30_000;

/** Some projects that are due, kept from other servers for the length of the lease. $1 lease in ms */
const CLAIM = statement<{ id: string; age_ms: number }>(
  'teardown-claim',
  `update projects p set teardown_after = now() + $1 * interval '1 millisecond'
     from (select id from projects where teardown_after <= now() order by teardown_after limit 20
              for no key update skip locked) due
    where p.id = due.id
   returning p.id, (extract(epoch from now() - p.deleted_at) * 1000)::double precision as age_ms`,
);
const AGAIN = statement(
  'teardown-again',
  `update projects set teardown_after = now() + $2 * interval '1 millisecond' where id = $1 and teardown_after is not null`,
);

export interface Teardown {
  /** Goes on with what is due; the sweeper calls it. */
  sweep(): Promise<void>;
  /** Something was deleted just now. */
  kick(): void;
  close(): Promise<void>;
}

export interface TeardownOptions extends TeardownContext {
  log: Logger;
  /** For tests. */
  graceMs?: number;
  steps?: readonly TeardownStep[];
}

export function createTeardown(options: TeardownOptions): Teardown {
  const { database, log } = options;
  const steps = options.steps ?? TEARDOWN_STEPS;
  const graceMs = options.graceMs ?? TEARDOWN_GRACE_MS;
  let running: Promise<void> | undefined;
  let again = false;
  const closed = new AbortController();

  async function tearDown(projectId: string, ageMs: number): Promise<void> {
    let left: string | undefined;
    for (const step of steps) {
      if ((await step.run(options, projectId)) > 0) left ??= step.what;
    }
    if (left === undefined && ageMs >= graceMs) {
      await all(database.pool, FINISH, [projectId]);
      log.info({ project: projectId }, 'nothing is left of a deleted project');
      return;
    }
    // Often at first, and seldom when a host does not come back.
    const wait = Math.min(Math.max(ageMs / 4, RETRY_FIRST_MS), RETRY_MAX_MS);
    await all(database.pool, AGAIN, [projectId, wait]);
    if (left !== undefined) log.debug({ project: projectId, left }, 'a deleted project is not empty yet');
  }

  async function pass(): Promise<void> {
    do {
      again = false;
      const due = await all(database.pool, CLAIM, [LEASE_MS]);
      for (const { id, age_ms: age } of due) {
        if (closed.signal.aborted) return;
        await tearDown(id, age).catch((error: unknown) =>
          log.error(
            { err: error, project: id },
            'a deleted project could not be torn down, and is tried again',
          ),
        );
      }
      if (due.length > 0) again = true;
    } while (again && !closed.signal.aborted);
  }

  const sweep = async (): Promise<void> => {
    if (closed.signal.aborted) return;
    again = true;
    running ??= pass().finally(() => (running = undefined));
    await running;
  };
  return {
    sweep,
    kick() {
      sweep().catch((error: unknown) => log.warn({ err: error }, 'a teardown waits for the sweeper'));
    },
    async close() {
      closed.abort();
      await running?.catch(() => undefined);
    },
  };
}

/** Inside the transaction of the deletion: from its commit on there is no such project, and its keys are revoked. */
export async function deleteProject(on: Queryable, projectId: string): Promise<void> {
  await on.query('update projects set deleted_at = now(), teardown_after = now() where id = $1', [projectId]);
  await on.query('update api_keys set revoked_at = now() where project_id = $1 and revoked_at is null', [
    projectId,
  ]);
}

/** The same for all projects of an organization. Gives their ids. */
export async function deleteProjectsOf(on: Queryable, orgId: string): Promise<string[]> {
  const { rows } = await on.query<{ id: string }>(
    'update projects set deleted_at = now(), teardown_after = now() where org_id = $1 and deleted_at is null returning id',
    [orgId],
  );
  const ids = rows.map(({ id }) => id);
  await on.query(
    'update api_keys set revoked_at = now() where project_id = any($1::uuid[]) and revoked_at is null',
    [ids],
  );
  return ids;
}
