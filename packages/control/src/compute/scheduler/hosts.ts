/** The hosts' resources and their allocations, from the database. */
import type { RunnerFacts } from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { Overcommit } from './overcommit.ts';
import { OCCUPIES_CPU } from '../sandboxes/transitions.ts';
import type { Host } from './placement.ts';

export interface HostRow {
  id: string;
  region: string;
  status: 'online' | 'offline' | 'lost';
  ready: boolean;
  draining_since: Date | null;
  drain_force: boolean;
  facts: RunnerFacts;
  capabilities: string[] | null;
  last_seen_at: Date;
  cpu: number;
  mem_mib: number;
  /** Outside guarantees; in `mem_mib` without the reclaimable part. */
  held_mem_mib: number;
  reclaimable_mem_mib: number;
  disk_mib: number;
  gpus: number;
  releasable_cpu: number;
  releasable_mem_mib: number;
}

/** A host with the allocations of its spot sandboxes, and of those that are leaving. */
export interface HostUsage extends Host {
  releasable: { cpu: number; mem_mib: number };
}

/**
 * How long requests that only a lost host could run wait for it before they are refused, in milliseconds.
 */
const ABSENT_MS = 6 * 3_600_000;

/**
 * How the rows are counted: as `allocation` in placement.ts does. $1..$3 times that cores, memory and disk are
 * overcommitted; $4 which sandboxes are.
 */
function overcommitValues({ cpu, mem, disk, tier }: Overcommit): [number, number, number, string] {
  return [cpu, mem, disk, tier];
}
const SHARE = (parameter: string): string =>
  `case when case mode when 'dedicated' then $4::text = 'all' else spot or $4::text <> 'spot' end
    then 1 / ${parameter}::double precision else 1 end`;

/**
 * Memory that a runner holds for sandboxes outside their guarantees is used, and free as far as the runner would release it.
 * Disk is allocated to everything on a host, also saved memory and snapshots; cores and memory to what may run. */
function select(held: string, hosts: string): string {
  const running = `status in (${OCCUPIES_CPU.map((status) => `'${status}'`).join(', ')})`;
  return `select r.id, r.region, r.status, r.ready, r.draining_since, r.drain_force, r.facts, r.capabilities, r.last_seen_at,
          coalesce(u.cpu, 0) as cpu, coalesce(u.mem_mib, 0) + r.held_mem_mib - r.reclaimable_mem_mib as mem_mib,
          r.held_mem_mib, r.reclaimable_mem_mib,
          coalesce(u.disk_mib, 0) + coalesce(k.disk_mib, 0)::double precision as disk_mib, coalesce(u.gpus, 0)::integer as gpus,
          coalesce(u.releasable_cpu, 0) as releasable_cpu, coalesce(u.releasable_mem_mib, 0) as releasable_mem_mib
     from runners r left join (
       select runner_id,
              sum(cpu * ${SHARE('$1')}) filter (where ${running}) as cpu,
              sum(mem_mib * ${SHARE('$2')}) filter (where ${running}) as mem_mib,
              sum(gpu_host) filter (where ${running}) as gpus,
              sum((scratch_mib::double precision + coalesce(docker_data_mib, 0) + case when has_memory then mem_mib else 0 end) * ${SHARE('$3')}) as disk_mib,
              sum(cpu * ${SHARE('$1')}) filter (where ${running} and (spot or status in ('stopping', 'pausing', 'deleting'))) as releasable_cpu,
              sum(mem_mib * ${SHARE('$2')}) filter (where ${running} and (spot or status in ('stopping', 'pausing', 'deleting'))) as releasable_mem_mib
         from sandboxes where ${held} group by runner_id
     ) u on u.runner_id = r.id
     left join (
       select runner_id, ceil(sum(coalesce(disk_bytes, 0) + coalesce(mem_bytes, 0)) / 1048576) as disk_mib
         from snapshots where ${held} group by runner_id
     ) k on k.runner_id = r.id
    where r.forgotten_at is null and ${hosts}`;
}

const KNOWN = `(r.status <> 'lost' or r.last_seen_at > now() - interval '${ABSENT_MS} milliseconds')`;
const HOSTS = statement<HostRow>('schedule-hosts', select('held', KNOWN));
const SOME_HOSTS = statement<HostRow>(
  'schedule-hosts-some',
  select('held and runner_id = any($5::uuid[])', `r.id = any($5::uuid[]) and ${KNOWN}`),
);
const ALL_HOSTS = statement<HostRow>('schedule-hosts-all', `${select('held', 'true')} order by r.id`);
const HOST = statement<HostRow>('schedule-host', select('held and runner_id = $5', 'r.id = $5'));

/** All connected hosts, and recently lost ones, which are not ready. */
export async function readHosts(on: Queryable, overcommit: Overcommit): Promise<HostUsage[]> {
  return (await queryAll(on, HOSTS, overcommitValues(overcommit))).map(toHost);
}

/** The same for these hosts. */
export async function readSomeHosts(
  on: Queryable,
  overcommit: Overcommit,
  ids: readonly string[],
): Promise<HostUsage[]> {
  return (await queryAll(on, SOME_HOSTS, [...overcommitValues(overcommit), ids])).map(toHost);
}

/** All hosts, lost ones included. */
export async function readAllHosts(
  on: Queryable,
  overcommit: Overcommit,
): Promise<{ row: HostRow; host: Host }[]> {
  return (await queryAll(on, ALL_HOSTS, overcommitValues(overcommit))).map((row) => ({
    row,
    host: toHost(row),
  }));
}

/** One host, lost or not. */
export async function readHostRow(
  on: Queryable,
  id: string,
  overcommit: Overcommit,
): Promise<{ row: HostRow; host: Host } | undefined> {
  const row = await queryOne(on, HOST, [...overcommitValues(overcommit), id]);
  return row && { row, host: toHost(row) };
}

/** One host, and the time of its last heartbeat if it is lost. */
export async function readHost(
  on: Queryable,
  id: string,
  overcommit: Overcommit,
): Promise<(Host & { lostSince: Date | null }) | undefined> {
  const found = await readHostRow(on, id, overcommit);
  return found && { ...found.host, lostSince: found.row.status === 'lost' ? found.row.last_seen_at : null };
}

function toHost(row: HostRow): HostUsage {
  return {
    id: row.id,
    region: row.region,
    ready: row.status === 'online' && row.ready,
    draining: row.draining_since !== null,
    facts: row.facts,
    capabilities: row.capabilities,
    used: { cpu: row.cpu, mem_mib: row.mem_mib, disk_mib: row.disk_mib, gpus: row.gpus },
    releasable: { cpu: row.releasable_cpu, mem_mib: row.releasable_mem_mib },
  };
}

/** Maximum age of a reading for advisory choices, in milliseconds. */
const ADVICE_MS = 1_000;

/**
 * Hosts as of up to a second ago, for choices that need not be exact (the region, the reason to report): one query a
 * second for any number of callers.
 */
export function createHostAdvice(on: Queryable, overcommit: Overcommit): () => Promise<readonly Host[]> {
  let cached: { until: number; hosts: Promise<readonly Host[]> } | undefined;
  return () => {
    const now = performance.now();
    if (cached === undefined || cached.until <= now) {
      const hosts = readHosts(on, overcommit);
      cached = { until: now + ADVICE_MS, hosts };
      hosts.catch(() => (cached = undefined));
    }
    return cached.hosts;
  };
}
