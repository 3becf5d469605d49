/** The hosts' resources and their allocations, from the database. */
import type { RunnerFacts } from '@releap/contract';
import { HOST_CLASSES, type ClassesOfHost } from '../../fleet/classes/host-classes.ts';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { Overcommit } from './overcommit.ts';
import { EPSILON, isOvercommitted, type Host, type Resources } from './placement.ts';

export interface HostRow {
  id: string;
  region: string;
  status: 'online' | 'offline' | 'lost';
  ready: boolean;
  draining_since: Date | null;
  drain_force: boolean;
  drain_move: boolean;
  facts: RunnerFacts;
  capabilities: string[] | null;
  classes: ClassesOfHost | null;
  last_seen_at: Date;
  /** Outside guarantees. */
  held_mem_mib: number;
  reclaimable_mem_mib: number;
  /** Null: its runner does not say. */
  free_disk_mib: number | null;
  used: Resources;
  releasable: HostUsage['releasable'];
}

/** What overcommitment tells apart. Spot sandboxes are those that are burstable, too. */
const TIERS = {
  dedicated: { mode: 'dedicated', spot: false },
  burstable: { mode: 'burstable', spot: false },
  spot: { mode: 'burstable', spot: true },
} as const;
const DIVIDED = ['cpu', 'mem_mib', 'disk_mib'] as const;

/** A host with the allocations of its spot sandboxes, and of those that are leaving. */
export interface HostUsage extends Host {
  releasable: { cpu: number; mem_mib: number };
}

/**
 * How long requests that only a lost host could run wait for it before they are refused, in milliseconds.
 */
const ABSENT_MS = 6 * 3_600_000;

/** What the sums of each tier are divided by. */
function factors(overcommit: Overcommit): string {
  const of = { cpu: overcommit.cpu, mem_mib: overcommit.mem, disk_mib: overcommit.disk };
  return JSON.stringify(
    Object.fromEntries(
      Object.entries(TIERS).flatMap(([tier, properties]) =>
        DIVIDED.map((what) => [`${tier}_${what}`, isOvercommitted(properties, overcommit) ? of[what] : 1]),
      ),
    ),
  );
}

/** Adds to a host `r` its row (migration host-allocations), which may be missing. $1 factors */
const ALLOCATIONS = `left join host_allocations a on a.runner_id = r.id
     cross join jsonb_to_record($1::jsonb) as f(${Object.keys(TIERS)
       .flatMap((tier) => DIVIDED.map((what) => `${tier}_${what} double precision`))
       .join(', ')})`;
/** Sum over the tiers of what is allocated of a resource. */
const sum = (what: (typeof DIVIDED)[number], column = (tier: string) => `${tier}_${what}`): string =>
  Object.keys(TIERS)
    .map((tier) => `coalesce(a.${column(tier)}, 0)::double precision / f.${tier}_${what}`)
    .join(' + ');
const releasable = (what: 'cpu' | 'mem_mib'): string =>
  sum(what, (tier) => `${tier === 'spot' ? '' : 'releasable_'}${tier}_${what}`);

/**
 * Allocated, over `r` and `ALLOCATIONS`. Memory that a runner holds for sandboxes outside their guarantees is used, and free as far as the
 * runner would release it. Disk is allocated to everything on a host, also saved memory and snapshots; cores and memory to what may run. More
 * of it is used if less is free on the host's file system (null: unknown): by images, the database, or other programs.
 */
const USED = {
  cpu: sum('cpu'),
  mem_mib: `r.held_mem_mib - r.reclaimable_mem_mib + ${sum('mem_mib')}`,
  disk_mib: `greatest(ceil(coalesce(a.snapshot_bytes, 0) / 1048576)::double precision + ${sum('disk_mib')},
            (r.facts ->> 'disk_mib')::double precision - r.free_disk_mib)`,
  gpus: 'coalesce(a.gpus, 0)::double precision',
};
const json = (values: Readonly<Record<string, string>>): string =>
  `json_build_object(${Object.entries(values)
    .map(([name, value]) => `'${name}', ${value}`)
    .join(', ')})`;

/** Rows of hosts only, whatever is on them. $1 factors */
function select(hosts: string): string {
  return `select r.id, r.region, r.status, r.ready, r.draining_since, r.drain_force, r.drain_move, r.facts, r.capabilities, r.last_seen_at,
          r.held_mem_mib, r.reclaimable_mem_mib, r.free_disk_mib, ${HOST_CLASSES} as classes, ${json(USED)} as used,
          ${json({ cpu: releasable('cpu'), mem_mib: releasable('mem_mib') })} as releasable
     from runners r ${ALLOCATIONS}
    where r.forgotten_at is null and ${hosts}`;
}

const KNOWN = `(r.status <> 'lost' or r.last_seen_at > now() - interval '${ABSENT_MS} milliseconds')`;
const HOSTS = statement<HostRow>('schedule-hosts', select(KNOWN));
const SOME_HOSTS = statement<HostRow>('schedule-hosts-some', select(`r.id = any($2::uuid[]) and ${KNOWN}`));
const ALL_HOSTS = statement<HostRow>('schedule-hosts-all', `${select('true')} order by r.id`);
const HOST = statement<HostRow>('schedule-host', select('r.id = $2'));
/** What a host has for sandboxes: see `allocatable`. */
const FACTS = { cpu: 'cores', mem_mib: 'mem_mib', disk_mib: 'disk_mib', gpus: 'gpus' } as const;
const hasCapacity = (what: keyof Resources): string =>
  `${USED[what]} <= (r.facts ->> '${FACTS[what]}')::double precision + ${EPSILON}`;
/**
 * The hosts of these sandboxes accept sandboxes, and are not over their capacity: raises an error otherwise. A host that has lost GPUs
 * has the capacity for what needs none. $1 factors, $2 sandboxes
 */
const REQUIRE_CAPACITY = statement(
  'schedule-require-capacity',
  `select require_host_capacity(r.forgotten_at is null and r.status = 'online' and r.ready and r.draining_since is null
            and ${DIVIDED.map(hasCapacity).join('\n            and ')}
            and (not s.has_gpus or ${hasCapacity('gpus')}))
     from (select runner_id, bool_or(gpu_host > 0) as has_gpus from sandboxes
            where id = any($2::uuid[]) and runner_id is not null group by runner_id) s
     left join runners r on r.id = s.runner_id ${ALLOCATIONS}`,
);
/** The SQLSTATE of that error. */
const HOST_CHANGED = 'RH001';
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

/**
 * Part of a transaction that has placed these sandboxes, and thereby locked the rows of their hosts: makes it fail when one of the hosts
 * is over its capacity now, or accepts none any more (`hasHostChanged`).
 */
export async function requireCapacity(
  on: Queryable,
  overcommit: Overcommit,
  sandboxIds: readonly string[],
): Promise<void> {
  await queryAll(on, REQUIRE_CAPACITY, [factors(overcommit), sandboxIds]);
}

export const hasHostChanged = (error: unknown): boolean => (error as { code?: string }).code === HOST_CHANGED;

/** All connected hosts, and recently lost ones, which are not ready. */
export async function readHosts(on: Queryable, overcommit: Overcommit): Promise<HostUsage[]> {
  return (await queryAll(on, HOSTS, [factors(overcommit)])).map(toHost);
}

/** The same for these hosts. */
export async function readSomeHosts(
  on: Queryable,
  overcommit: Overcommit,
  ids: readonly string[],
): Promise<HostUsage[]> {
  return (await queryAll(on, SOME_HOSTS, [factors(overcommit), ids])).map(toHost);
}

/** All hosts, lost ones included. */
export async function readAllHosts(
  on: Queryable,
  overcommit: Overcommit,
): Promise<{ row: HostRow; host: Host }[]> {
  return (await queryAll(on, ALL_HOSTS, [factors(overcommit)])).map((row) => ({ row, host: toHost(row) }));
}

/** One host, lost or not. */
export async function readHostRow(
  on: Queryable,
  id: string,
  overcommit: Overcommit,
): Promise<{ row: HostRow; host: Host } | undefined> {
  const row = await queryOne(on, HOST, [factors(overcommit), id]);
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
    classes: row.classes ?? {},
    used: row.used,
    releasable: row.releasable,
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
