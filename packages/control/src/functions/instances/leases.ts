/** Leases of instances in the database: which gateway has which sandbox, until when. */
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { SKIP_LOCKED, WorkTable } from '../../platform/work/work-table.ts';
import type { SandboxStatus } from '@releap/contract';

/** Statuses of an instance that serves, or will. */
export const STARTING = [
  'pending',
  'assigned',
  'building',
  'booting',
] as const satisfies readonly SandboxStatus[];
const USABLE = `s.desired = 'running' and s.status in (${[...STARTING, 'running'].map((status) => `'${status}'`).join(', ')})`;

/** Serializes the leases of one function, which are counted. */
const LOCK = statement('function-lock', 'select 1 from functions where id = $1 for no key update');

/** What a gateway has, or a server that tries a version. */
export interface HeldLease {
  sandbox_id: string;
  gateway_id: string;
}

export const INSTANCES = new WorkTable<HeldLease>({
  name: 'function-instances',
  table: 'function_instances',
  key: { sandbox_id: 'uuid' },
  fence: { gateway_id: 'uuid' },
  attempt: 'epoch',
  claimed: 'w.gateway_id is not null',
  freshShare: 0.7,
});

/** $1 lease in milliseconds, $2 version, $3 gateway */
const ADOPT = INSTANCES.claiming<{ sandbox_id: string }>('adopt', {
  pick: `select w.sandbox_id from function_instances w join sandboxes s on s.id = w.sandbox_id
       left join runners r on r.id = s.runner_id
      where w.version_id = $2 and w.ended_at is null and w.purpose = 'serve' and w.lease_until <= now() and ${USABLE} and r.draining_since is null
      order by (s.status = 'running') desc, w.created_at limit 1 ${SKIP_LOCKED}`,
  set: 'gateway_id = $3',
  returning: 'w.sandbox_id',
});

/** The attempt that a server has begun and does not continue. $1 lease in milliseconds, $2 version, $3 this server */
const TAKE_OVER = INSTANCES.claiming<{ sandbox_id: string }>('take-over', {
  pick: `select w.sandbox_id from function_instances w join sandboxes s on s.id = w.sandbox_id
      where w.version_id = $2 and w.purpose = 'probe' and (w.lease_until <= now() or w.gateway_id = $3)
        and s.desired = 'running' and s.status in ('pending', 'assigned', 'building', 'booting', 'running')
      order by w.created_at limit 1 ${SKIP_LOCKED}`,
  set: 'gateway_id = $3',
  returning: 'w.sandbox_id',
});

/** Instances that are being deleted count until they are gone, and those of tries as well. $1 function, $2 version */
const COUNT = statement<{ live: number; max_instances: number | null }>(
  'function-instances-count',
  `select v.max_instances, (
      select count(*)::integer from function_instances i join sandboxes s on s.id = i.sandbox_id
       where i.function_id = $1 and i.ended_at is null and s.status not in ('deleted', 'failed', 'lost')) as live
     from function_versions v where v.id = $2`,
);

/** Those of other versions that no gateway has. $1 function, $2 version */
const SPARE = statement<{ id: string }>(
  'function-instances-spare',
  `select s.id from function_instances i join sandboxes s on s.id = i.sandbox_id
    where i.function_id = $1 and i.ended_at is null and i.version_id <> $2 and i.purpose = 'serve' and i.lease_until <= now() and ${USABLE}
      for update of i skip locked`,
);

/** An expired lease is renewed too, as long as no other gateway has the instance. $1, $2 lease, $3 milliseconds, $4 version */
const RECLAIM = INSTANCES.changing<{ sandbox_id: string }>('reclaim', {
  set: INSTANCES.until('$3'),
  and: 'w.version_id = $4',
});

/** $1, $2 lease */
const RELEASE = INSTANCES.changing<{ function_id: string }>('release', {
  set: 'gateway_id = null, lease_until = now()',
  returning: 'w.function_id',
});

/** That gateways have on hosts that are drained. */
const ON_DRAINED = statement<{ id: string }>(
  'function-instances-on-drained-hosts',
  `select s.id from runners r
     join sandboxes s on s.runner_id = r.id and s.held and s.status = 'running'
     join function_instances i on i.sandbox_id = s.id and i.purpose = 'serve' and ${INSTANCES.leased('i')}
    where r.draining_since is not null limit 1000`,
);

const STATE = statement<InstanceState>(
  'function-instance-state',
  `select s.status, s.error, s.project_id, s.runner_id, r.data_url,
          case when s.manifest_name is null or s.status = 'paused' then s.spec -> 'origin' ->> 'snapshot_id' end as template_id
     from function_instances i join sandboxes s on s.id = i.sandbox_id left join runners r on r.id = s.runner_id
    where i.sandbox_id = $1 and i.gateway_id = $2`,
);

/** Without a lease for longer than $1 milliseconds, or unable to serve. $2 most */
const ENDED = statement<{ id: string }>(
  'function-instances-ended',
  `select s.id from function_instances i join sandboxes s on s.id = i.sandbox_id
    where i.ended_at is null and s.status not in ('deleting', 'deleted')
      and (s.status in ('failed', 'lost', 'stopped', 'paused')
           or i.lease_until < now() - $1 * interval '1 millisecond')
    limit $2 for update of i skip locked`,
);

/** Rows of instances that ended more than $1 milliseconds ago. $2 most */
const PURGE = statement<{ id: string }>(
  'function-instances-purge',
  `with ended as (
     select s.id, s.job_id from function_instances i join sandboxes s on s.id = i.sandbox_id
      where s.status = 'deleted' and not s.held and s.deleted_at < now() - $1 * interval '1 millisecond'
        and not exists (select 1 from snapshots k where k.sandbox_id = s.id)
      limit $2 for update of s skip locked
   ), readings as (
     delete from cpu_readings where sandbox_id in (select id from ended)
   ), jobs as (
     delete from jobs where id in (select job_id from ended)
   )
   delete from sandboxes where id in (select id from ended) returning id`,
);

export interface InstanceState {
  status: SandboxStatus;
  error: string | null;
  project_id: string;
  runner_id: string | null;
  data_url: string | null;
  /** The snapshot that it was to be restored from, as long as it has not run. */
  template_id: string | null;
}

/** Until the end of the transaction no other transaction takes or adds instances of the function. */
export async function lockFunction(client: Queryable, functionId: string): Promise<void> {
  await queryAll(client, LOCK, [functionId]);
}

/** @returns the sandbox of a try that a server has begun and does not continue; this server has it from now on */
export async function takeOverProbe(
  client: Queryable,
  { versionId, serverId, leaseMs }: { versionId: string; serverId: string; leaseMs: number },
): Promise<string | undefined> {
  return (await queryOne(client, TAKE_OVER, [leaseMs, versionId, serverId]))?.sandbox_id;
}

/** Takes an instance of the version that no gateway has; one that runs already first. */
export async function adopt(
  client: Queryable,
  versionId: string,
  gatewayId: string,
  leaseMs: number,
): Promise<string | undefined> {
  return (await queryOne(client, ADOPT, [leaseMs, versionId, gatewayId]))?.sandbox_id;
}

/** How many instances the function has, of all versions, and how many this version allows; null: any. */
export async function countInstances(
  client: Queryable,
  functionId: string,
  versionId: string,
): Promise<{ live: number; max: number | null }> {
  const row = await queryOne(client, COUNT, [functionId, versionId]);
  return { live: row?.live ?? 0, max: row?.max_instances ?? null };
}

export function spareInstances(
  client: Queryable,
  functionId: string,
  versionId: string,
): Promise<{ id: string }[]> {
  return queryAll(client, SPARE, [functionId, versionId]);
}

/** @returns false when the gateway does not have it any more */
export async function reclaim(
  on: Queryable,
  lease: HeldLease,
  versionId: string,
  leaseMs: number,
): Promise<boolean> {
  return (await queryOne(on, RECLAIM, [...INSTANCES.values([lease]), leaseMs, versionId])) !== undefined;
}

/** @returns its function; undefined when the gateway did not have it any more */
export async function release(on: Queryable, lease: HeldLease): Promise<string | undefined> {
  return (await queryOne(on, RELEASE, INSTANCES.values([lease])))?.function_id;
}

/** Undefined when the gateway does not have it any more. */
export function readInstance(
  on: Queryable,
  { sandbox_id, gateway_id }: HeldLease,
): Promise<InstanceState | undefined> {
  return queryOne(on, STATE, [sandbox_id, gateway_id]);
}

/** At most so many instances to be deleted, locked against adoption. */
export function endedInstances(client: Queryable, graceMs: number, most: number): Promise<{ id: string }[]> {
  return queryAll(client, ENDED, [graceMs, most]);
}

/** Instances that their gateways are to give up, because their hosts are drained. */
export async function instancesOnDrainedHosts(on: Queryable): Promise<string[]> {
  return (await queryAll(on, ON_DRAINED)).map(({ id }) => id);
}

const PURGE_BATCH = 500;

/** Removes rows of instances that ended before, and with them their logs. */
export async function purgeInstances(on: Queryable, afterMs: number): Promise<void> {
  for (let purged = PURGE_BATCH; purged === PURGE_BATCH; )
    purged = (await queryAll(on, PURGE, [afterMs, PURGE_BATCH])).length;
}
