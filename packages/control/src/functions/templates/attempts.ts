/** The instances on which pending versions are tried, in the database: any server continues what another one has begun. */
import { queryAll, queryOne, statement, type Queryable, type SandboxRow } from '@releap/database';
import { INSTANCES, takeOverProbe } from '../instances/leases.ts';
import { selectVersions, type InstanceVersion } from '../instances/version.ts';
import { MACHINE } from './template-rows.ts';

/** A version to be tried. */
export interface DueVersion extends InstanceVersion {
  /** The host that an instance is captured on, of a version that serves; null: any. */
  capture_on: string | null;
}

/**
 * Hosts that have recently started instances of current versions and have no template of them that their machine has captured: neither
 * on themselves nor in the store, where a new one may still be uploaded to. Where a capture has failed, it is tried again
 * after a while, or with another machine.
 */
const LACKING = `select i.version_id, r.id as runner_id, i.created_at
   from function_instances i
   join function_versions v on v.id = i.version_id and v.template_state = 'published' and v.snapshot_kind = 'fn_ready'
   join functions f on f.id = v.function_id and f.current_version = v.version
   join sandboxes s on s.id = i.sandbox_id
   join runners r on r.id = s.runner_id and r.status = 'online' and r.ready and r.draining_since is null
  where i.purpose = 'serve' and i.created_at > now() - interval '10 minutes'
    and not exists (
      select 1 from function_templates t join snapshots k on k.id = t.snapshot_id and k.status in ('pending', 'ready')
       where t.version_id = i.version_id and t.machine = ${MACHINE('r')} and r.id <> all (t.failed_on)
         and (k.runner_id = r.id or t.created_at > now() - interval '5 minutes'
              or exists (select 1 from artifacts a where a.id = k.id and a.stored_at is not null)))
    and not exists (
      select 1 from function_template_failures x
       where x.version_id = i.version_id and x.runner_id = r.id and x.machine = ${MACHINE('r')} and x.retry_at > now())`;

/** Over `function_instances i` and its `sandboxes s`. */
const isTriedByOthers = (
  server: string,
): string => `i.purpose = 'probe' and ${INSTANCES.leased('i')} and i.gateway_id <> ${server}
      and s.status not in ('deleting', 'deleted', 'failed', 'lost')`;

/**
 * Pending versions that no server tries, and those that need another template: the oldest of each organization, then the next ones.
 * $1 this server, $2 versions that are not looked at, $3 most
 */
const DUE = statement<DueVersion>(
  'function-versions-due',
  `with lacking as (select distinct on (version_id) version_id, runner_id from (${LACKING}) as l order by version_id, created_at desc)
   ${selectVersions(', l.runner_id as capture_on')}
    left join lacking l on l.version_id = v.id and v.template_state = 'published'
    where v.id in (select id from function_versions where template_state = 'pending' and root is not null
                   union all select version_id from lacking)
      and not exists (select 1 from function_instances i join sandboxes s on s.id = i.sandbox_id
                       where i.version_id = v.id and ${isTriedByOthers('$1')})
      and v.id <> all ($2::uuid[])
    order by row_number() over (partition by p.org_id order by v.created_at), v.created_at limit $3`,
);

/** One that another server has. $1 version, $2 this server */
const OF_OTHERS = statement(
  'function-probe-of-others',
  `select 1 from function_instances i join sandboxes s on s.id = i.sandbox_id where i.version_id = $1 and ${isTriedByOthers('$2')} limit 1`,
);

/** $1 version */
const TO_BE_TRIED = statement(
  'function-version-to-be-tried',
  `select 1 from function_versions v
    where v.id = $1 and (v.template_state = 'pending' or exists (${LACKING} and i.version_id = $1))`,
);

type ProbeSandbox = Pick<SandboxRow, 'spec' | 'manifest_name' | 'runner_id'>;

const SANDBOX = statement<ProbeSandbox>(
  'function-probe-sandbox',
  'select spec, manifest_name, runner_id from sandboxes where id = $1',
);

/** The pause doubles with each failure on the same machine. $1 version, $2 host, $3 first pause, $4 longest one in milliseconds */
const FAILED = statement(
  'function-template-failed',
  `insert into function_template_failures as x (version_id, runner_id, machine, retry_at)
   select $1, r.id, ${MACHINE('r')}, now() + $3 * interval '1 millisecond' from runners r where r.id = $2
   on conflict (version_id, runner_id) do update set machine = excluded.machine,
     attempts = case when x.machine = excluded.machine then x.attempts + 1 else 1 end,
     retry_at = now() + interval '1 millisecond'
                * case when x.machine = excluded.machine then least($3 * power(2, least(x.attempts, 20)), $4) else $3 end`,
);

/** $1 version, $2 host */
const SUCCEEDED = statement(
  'function-template-succeeded',
  'delete from function_template_failures where version_id = $1 and runner_id = $2',
);

/** @param without versions that wait for another try: these would be in the way of others */
export function dueVersions(
  on: Queryable,
  serverId: string,
  without: readonly string[],
  most: number,
): Promise<DueVersion[]> {
  return queryAll(on, DUE, [serverId, without, most]);
}

/** @returns its sandbox; null when another server tries this version, undefined when no server does */
export async function takeOver(
  client: Queryable,
  versionId: string,
  serverId: string,
  leaseMs: number,
): Promise<string | null | undefined> {
  const taken = await takeOverProbe(client, { versionId, serverId, leaseMs });
  if (taken !== undefined) return taken;
  return (await queryOne(client, OF_OTHERS, [versionId, serverId])) === undefined ? undefined : null;
}

/** Whether it is pending, or needs another template. */
export async function isToBeTried(client: Queryable, versionId: string): Promise<boolean> {
  return (await queryOne(client, TO_BE_TRIED, [versionId])) !== undefined;
}

export function readSandbox(on: Queryable, sandboxId: string): Promise<ProbeSandbox | undefined> {
  return queryOne(on, SANDBOX, [sandboxId]);
}

/** An instance of the version was captured on a host, or could not be. */
export async function recordCapture(
  on: Queryable,
  { versionId, runnerId }: { versionId: string; runnerId: string },
  outcome: 'captured' | { retryMs: number; longestMs: number },
): Promise<void> {
  if (outcome === 'captured') await queryAll(on, SUCCEEDED, [versionId, runnerId]);
  else await queryAll(on, FAILED, [versionId, runnerId, outcome.retryMs, outcome.longestMs]);
}
