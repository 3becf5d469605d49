/** The hosts' resources and their allocations, from the database. */
import type { RunnerFacts } from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { Overcommit } from './overcommit.ts';
import { allocation, isOvercommitted, plus, type Host, type Resources } from './placement.ts';

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
  /** Outside guarantees. */
  held_mem_mib: number;
  reclaimable_mem_mib: number;
  /** Null: its runner does not say. */
  free_disk_mib: number | null;
  gpus: number;
  snapshot_mib: number;
  /** The guarantees of its sandboxes, by the tiers that overcommitment tells apart. */
  tiers: Record<Tier, Sums>;
}

/** Spot sandboxes are those that are burstable, too. */
type Tier = 'dedicated' | 'burstable' | 'spot';
interface Sums {
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  /** Of sandboxes that are leaving or may be evicted. */
  releasable_cpu: number;
  releasable_mem_mib: number;
}
const TIERS: Record<Tier, { mode: 'burstable' | 'dedicated'; spot: boolean }> = {
  dedicated: { mode: 'dedicated', spot: false },
  burstable: { mode: 'burstable', spot: false },
  spot: { mode: 'burstable', spot: true },
};

/** A host with the allocations of its spot sandboxes, and of those that are leaving. */
export interface HostUsage extends Host {
  releasable: { cpu: number; mem_mib: number };
}

/**
 * How long requests that only a lost host could run wait for it before they are refused, in milliseconds.
 */
const ABSENT_MS = 6 * 3_600_000;

const sums = (tier: Tier): string => {
  const releasable = tier === 'spot' ? 'spot' : `releasable_${tier}`;
  return `'${tier}', json_build_object('cpu', coalesce(a.${tier}_cpu, 0), 'mem_mib', coalesce(a.${tier}_mem_mib, 0),
            'disk_mib', coalesce(a.${tier}_disk_mib, 0),
            'releasable_cpu', coalesce(a.${releasable}_cpu, 0), 'releasable_mem_mib', coalesce(a.${releasable}_mem_mib, 0))`;
};

/** Rows of hosts only: what their sandboxes and snapshots add up to is a row too (migration host-allocations). */
function select(hosts: string): string {
  return `select r.id, r.region, r.status, r.ready, r.draining_since, r.drain_force, r.facts, r.capabilities, r.last_seen_at,
          r.held_mem_mib, r.reclaimable_mem_mib, r.free_disk_mib, coalesce(a.gpus, 0)::integer as gpus,
          ceil(coalesce(a.snapshot_bytes, 0) / 1048576)::double precision as snapshot_mib,
          json_build_object(${Object.keys(TIERS)
            .map((tier) => sums(tier as Tier))
            .join(', ')}) as tiers
     from runners r left join host_allocations a on a.runner_id = r.id
    where r.forgotten_at is null and ${hosts}`;
}

const KNOWN = `(r.status <> 'lost' or r.last_seen_at > now() - interval '${ABSENT_MS} milliseconds')`;
const HOSTS = statement<HostRow>('schedule-hosts', select(KNOWN));
const SOME_HOSTS = statement<HostRow>('schedule-hosts-some', select(`r.id = any($1::uuid[]) and ${KNOWN}`));
const ALL_HOSTS = statement<HostRow>('schedule-hosts-all', `${select('true')} order by r.id`);
const HOST = statement<HostRow>('schedule-host', select('r.id = $1'));
/** In one order, as the statements that move sandboxes lock them. $1 hosts */
const LOCK = statement(
  'schedule-hosts-lock',
  'select 1 from host_allocations where runner_id = any($1::uuid[]) order by runner_id for no key update',
);

/**
 * Waits for the transactions that have moved sandboxes of these hosts, and makes others wait until the end of this one. What is read of
 * the hosts after it stays as it is.
 */
export async function lockHosts(on: Queryable, ids: readonly string[]): Promise<void> {
  await queryAll(on, LOCK, [ids]);
}

/** All connected hosts, and recently lost ones, which are not ready. */
export async function readHosts(on: Queryable, overcommit: Overcommit): Promise<HostUsage[]> {
  return (await queryAll(on, HOSTS)).map((row) => toHost(row, overcommit));
}

/** The same for these hosts. */
export async function readSomeHosts(
  on: Queryable,
  overcommit: Overcommit,
  ids: readonly string[],
): Promise<HostUsage[]> {
  return (await queryAll(on, SOME_HOSTS, [ids])).map((row) => toHost(row, overcommit));
}

/** All hosts, lost ones included. */
export async function readAllHosts(
  on: Queryable,
  overcommit: Overcommit,
): Promise<{ row: HostRow; host: Host }[]> {
  return (await queryAll(on, ALL_HOSTS)).map((row) => ({ row, host: toHost(row, overcommit) }));
}

/** One host, lost or not. */
export async function readHostRow(
  on: Queryable,
  id: string,
  overcommit: Overcommit,
): Promise<{ row: HostRow; host: Host } | undefined> {
  const row = await queryOne(on, HOST, [id]);
  return row && { row, host: toHost(row, overcommit) };
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

/**
 * Memory that a runner holds for sandboxes outside their guarantees is used, and free as far as the runner would release it.
 * Disk is allocated to everything on a host, also saved memory and snapshots; cores and memory to what may run. More of it is used if
 * less is free on the host's file system: by images, the database, or other programs.
 */
function toHost(row: HostRow, overcommit: Overcommit): HostUsage {
  let used: Resources = {
    cpu: 0,
    mem_mib: row.held_mem_mib - row.reclaimable_mem_mib,
    disk_mib: row.snapshot_mib,
    gpus: row.gpus,
  };
  const releasable = { cpu: 0, mem_mib: 0 };
  for (const [tier, properties] of Object.entries(TIERS)) {
    const guarantees = row.tiers[tier as Tier];
    const { cpu, mem_mib, disk_mib, releasable_cpu, releasable_mem_mib } = guarantees;
    const overcommitted = isOvercommitted(properties, overcommit);
    used = plus(used, allocation({ cpu, mem_mib, disk_mib, gpus: 0, overcommitted }, overcommit));
    const part = { cpu: releasable_cpu, mem_mib: releasable_mem_mib, disk_mib: 0, gpus: 0, overcommitted };
    const released = allocation(part, overcommit);
    releasable.cpu += released.cpu;
    releasable.mem_mib += released.mem_mib;
  }
  if (row.free_disk_mib !== null)
    used.disk_mib = Math.max(used.disk_mib, row.facts.disk_mib - row.free_disk_mib);
  return {
    id: row.id,
    region: row.region,
    ready: row.status === 'online' && row.ready,
    draining: row.draining_since !== null,
    facts: row.facts,
    capabilities: row.capabilities,
    used,
    releasable,
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
