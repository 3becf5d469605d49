/**
 * Sandboxes as the facade shows them: all of the project, also those that were created with the API. One that is not
 * persistent ends when it is stopped; the facade shows it as stopped until it is deleted.
 */
import { parseSandboxId, type CompatSandboxState, type SandboxId } from '@releap/contract';
import {
  queryAll,
  queryOne,
  statement,
  type Database,
  type Environment,
  type Queryable,
  type StoredSpec,
} from '@releap/database';
import { STATE_SQL } from './states.ts';

export interface ItemRow {
  id: string;
  region: string;
  name: string;
  state: CompatSandboxState;
  desired: 'running' | 'stopped' | 'paused' | 'deleted';
  stopped: boolean;
  persistent: boolean;
  has_memory: boolean;
  error: string | null;
  cpu: number;
  mem_mib: number;
  scratch_mib: number;
  gpu_host: number;
  runner_id: string | null;
  image_ref: string;
  /** Null unless it was created with the facade from a snapshot. */
  snapshot: string | null;
  labels: Record<string, string>;
  /** Of an image that is built for it. */
  dockerfile: string | null;
  created_at: Date;
  updated_at: Date;
  last_activity_at: Date;
  toolbox_proxy_url: string | null;
  egress_policy: StoredSpec['egress_policy'];
  /** Null for that of the image. */
  user: string | null;
  /** Minutes. */
  auto_stop_m: number | null;
  auto_archive_m: number | null;
  auto_delete_m: number | null;
  auto_destroy_at: Date | null;
}

export interface DetailRow extends ItemRow {
  env: Environment | null;
}

export const ITEM_COLUMNS = `s.id, s.region, s.spec ->> 'name' as name, ${STATE_SQL} as state, s.desired,
  coalesce(c.stopped, false) as stopped, s.persistent, s.has_memory, s.error, s.cpu, s.mem_mib, s.scratch_mib, s.gpu_host,
  s.runner_id, s.spec ->> 'image_ref' as image_ref, c.snapshot, coalesce(c.labels, '{}') as labels,
  s.spec -> 'root' -> 'dockerfile' ->> 'text' as dockerfile, s.created_at, s.updated_at,
  coalesce(c.last_activity_at, s.created_at) as last_activity_at, r.toolbox_proxy_url, s.spec -> 'egress_policy' as egress_policy,
  s.spec ->> 'user' as user, c.auto_stop_m, c.auto_archive_m, c.auto_delete_m,
  (select case when l.idle_s is null then l.expires_at else l.ends_at end from sandbox_leases l where l.sandbox_id = s.id) as auto_destroy_at`;

export const JOINS = `join regions r on r.id = s.region left join compat_sandboxes c on c.sandbox_id = s.id`;

/** Ids of a project's sandboxes that are shown; `named`: a condition on its rows of `sandboxes` that an index serves. */
export const VISIBLE = (project: string, named = 'true'): string => `
  select id from sandboxes where project_id = ${project} and owner_kind = 'project' and status <> 'deleted' and ${named}
  union select sandbox_id from compat_sandboxes where project_id = ${project} and stopped`;

const DETAIL = `select ${ITEM_COLUMNS}, e.env
  from sandboxes s ${JOINS} left join sandbox_env e on e.sandbox_id = s.id`;

/** $1 project, $2 id, $3 region (null: any) */
const BY_ID = statement<DetailRow>(
  'compat-sandbox-by-id',
  `${DETAIL} where s.id = $2 and s.project_id = $1 and s.owner_kind = 'project' and ($3::text is null or s.region = $3)
      and (s.status <> 'deleted' or c.stopped)`,
);

/** Of several, that whose name the facade keeps unique, else the newest. $1 project, $2 name */
const BY_NAME = statement<DetailRow>(
  'compat-sandbox-by-name',
  `${DETAIL} where s.id in (${VISIBLE('$1', `spec ->> 'name' = $2`)}) and s.spec ->> 'name' = $2
    order by c.name is not null desc, s.created_at desc limit 1`,
);

/** Undefined for one that the project does not have. An id is tried first. */
export async function findSandbox(
  { pool }: Database,
  projectId: string,
  idOrName: string,
): Promise<DetailRow | undefined> {
  const id = parseSandboxId(idOrName);
  const found = id === null ? undefined : await readSandbox(pool, projectId, id);
  return found ?? (await queryOne(pool, BY_NAME, [projectId, idOrName]));
}

export function readSandbox(
  on: Queryable,
  projectId: string,
  { uuid, region }: SandboxId,
): Promise<DetailRow | undefined> {
  return queryOne(on, BY_ID, [projectId, uuid, region]);
}

/**
 * Reserves the name, unless a sandbox that is shown has it. The row of a create that was interrupted is replaced after a
 * minute. $1 sandbox, $2 project, $3 name, $4 snapshot, $5 labels, $6 to $8 intervals
 */
const RESERVE = statement<{ sandbox_id: string }>(
  'compat-sandbox-reserve',
  `insert into compat_sandboxes as c (sandbox_id, project_id, name, snapshot, labels, auto_stop_m, auto_archive_m, auto_delete_m)
   select $1::uuid, $2::uuid, $3::text, $4::text, $5::jsonb, $6::integer, $7::integer, $8::integer
    where $3::text is null or not exists (
      select 1 from sandboxes s where s.project_id = $2 and s.owner_kind = 'project' and s.status <> 'deleted'
         and s.spec ->> 'name' = $3)
   on conflict (project_id, name) where name is not null do update
     set sandbox_id = excluded.sandbox_id, snapshot = excluded.snapshot, labels = excluded.labels, last_activity_at = null,
         auto_stop_m = excluded.auto_stop_m, auto_archive_m = excluded.auto_archive_m, auto_delete_m = excluded.auto_delete_m,
         stopped = false, created_at = now()
   where not c.stopped and not exists (select 1 from sandboxes s where s.id = c.sandbox_id and s.status <> 'deleted')
     and (c.created_at < now() - interval '1 minute' or exists (select 1 from sandboxes s where s.id = c.sandbox_id))
   returning sandbox_id`,
);

export interface Reservation {
  id: string;
  projectId: string;
  name: string | null;
  snapshot: string | null;
  labels: Record<string, string>;
  /** Minutes, as the client sent them. */
  autoStopInterval: number | undefined;
  autoArchiveInterval: number | undefined;
  autoDeleteInterval: number | undefined;
}

/** @returns false when the name is taken */
export async function reserveSandbox(on: Queryable, reservation: Reservation): Promise<boolean> {
  const { id, projectId, name, snapshot, labels } = reservation;
  const row = await queryOne(on, RESERVE, [
    id,
    projectId,
    name,
    snapshot,
    JSON.stringify(labels),
    reservation.autoStopInterval ?? null,
    reservation.autoArchiveInterval ?? null,
    reservation.autoDeleteInterval ?? null,
  ]);
  return row !== undefined;
}

const FORGET = statement('compat-sandbox-forget', 'delete from compat_sandboxes where sandbox_id = $1');

/** The create has failed, or its stopped sandbox is deleted. */
export async function forgetSandbox(on: Queryable, id: string): Promise<void> {
  await queryOne(on, FORGET, [id]);
}

/** $1 sandbox, $2 project, $3 stopped */
const SET_STOPPED = statement(
  'compat-sandbox-stopped',
  `insert into compat_sandboxes (sandbox_id, project_id, stopped) values ($1, $2, $3)
   on conflict (sandbox_id) do update set stopped = excluded.stopped`,
);

export async function setStopped(
  on: Queryable,
  id: string,
  projectId: string,
  stopped: boolean,
): Promise<void> {
  await queryOne(on, SET_STOPPED, [id, projectId, stopped]);
}

/** $1 sandbox, $2 project */
const TOUCH = statement(
  'compat-sandbox-touch',
  `insert into compat_sandboxes (sandbox_id, project_id, last_activity_at)
   select $1::uuid, $2::uuid, now() from (select count(*) from renew_idle_leases(array[$1::uuid])) as renewed
   on conflict (sandbox_id) do update set last_activity_at = now()`,
);

export async function touchSandbox(on: Queryable, id: string, projectId: string): Promise<void> {
  await queryOne(on, TOUCH, [id, projectId]);
}

/** $1 sandboxes */
const RENEW = statement<{ id: string }>(
  'compat-leases-renew',
  'select renewed as id from renew_idle_leases($1::uuid[]) as renewed',
);
/** $1 sandboxes */
const USED = statement(
  'compat-sandboxes-used',
  'update compat_sandboxes set last_activity_at = now() where sandbox_id = any($1::uuid[])',
);

/** Clients use these sandboxes: those that have an idle time keep their leases. */
export async function renewIdleLeases(on: Queryable, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return;
  // A statement of its own: within the other one, PostgreSQL would not call it where that finds no row to look at.
  const renewed = await queryAll(on, RENEW, [ids]);
  if (renewed.length > 0) await queryAll(on, USED, [renewed.map(({ id }) => id)]);
}
