/** Evicts spot sandboxes for non-spot ones that found no capacity. Part of a placement round. */
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Overcommit } from './overcommit.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import { chooseEviction, hostWithCapacity, type Evictable } from './eviction.ts';
import { lockHosts, readSomeHosts, type HostUsage } from './hosts.ts';
import {
  allocation,
  fits,
  free,
  isEligible,
  isOvercommitted,
  plus,
  type Host,
  type Need,
} from './placement.ts';

interface Taken {
  id: string;
  runner_id: string;
  created_at: Date;
  mode: 'burstable' | 'dedicated';
  spot: boolean;
  persistent: boolean;
  leaving: boolean;
  keeps_memory: boolean;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpu_host: number;
}

/**
 * Of these hosts ($1): the newest evictable spot sandboxes of each, and leaving sandboxes, whose capacity is released
 * without an eviction. A sandbox whose eviction failed is skipped for a minute.
 */
const TAKEN = statement<Taken>(
  'schedule-evictable',
  `select t.* from unnest($1::uuid[]) as h(id) cross join lateral (
     select id, runner_id, created_at, mode, spot, persistent, status in ('stopping', 'pausing', 'deleting') as leaving,
            status = 'pausing' or (status = 'running' and persistent and volume_count = 0 and docker_data_mib is null and gpu_host = 0) as keeps_memory,
            cpu, mem_mib, gpu_host, scratch_mib::double precision + coalesce(docker_data_mib, 0) as disk_mib
       from sandboxes
      where held and runner_id = h.id and (
        status in ('stopping', 'pausing', 'deleting')
        or (spot and (spot_evicted_at is null or spot_evicted_at < now() - interval '1 minute')
            and (status = 'running' or (not persistent and status in ('assigned', 'building', 'booting')))))
      order by leaving desc, created_at desc limit $2) t`,
);

/** Bounds of a round: requests, hosts per request, sandboxes per host. */
const MOST_REQUESTS = 50;
const MOST_HOSTS = 8;
const MOST_SANDBOXES = 500;

/**
 * Part of a transaction (`allocate`), which locks the hosts: nothing leaves them or is placed there until its end.
 * @param waiting non-spot requests that found no capacity, in the order of the queue
 * @param candidates of `candidateHosts`
 */
export async function preempt(
  on: Queryable,
  lifecycle: Lifecycle,
  waiting: readonly Need[],
  overcommit: Overcommit,
  candidates: readonly string[],
): Promise<SandboxRow[]> {
  const requests = waiting.slice(0, MOST_REQUESTS);
  if (requests.length === 0 || candidates.length === 0) return [];
  await lockHosts(on, candidates);
  const taken = await queryAll(on, TAKEN, [candidates, MOST_SANDBOXES]);
  let spot: Evictable[] = taken
    .filter((one) => !one.leaving)
    .map((one) => ({
      id: one.id,
      runner_id: one.runner_id,
      created_at: one.created_at,
      frees: frees(one, overcommit),
    }));
  if (spot.length === 0) return [];
  const hosts = await readSomeHosts(on, overcommit, candidates);
  // The hosts as they will be when the leaving sandboxes have left.
  const future = hosts.map((host) => ({
    ...host,
    used: taken
      .filter((one) => one.leaving && one.runner_id === host.id)
      .reduce((used, one) => plus(used, frees(one, overcommit), -1), host.used),
  }));
  const evict: Evictable[] = [];
  for (const need of requests) {
    let host: Host | undefined = hostWithCapacity(need, future, overcommit);
    if (host === undefined) {
      const choice = chooseEviction(need, future, spot, overcommit);
      if (choice === undefined) continue;
      host = choice.host;
      evict.push(...choice.evict);
      spot = spot.filter((one) => !choice.evict.includes(one));
      for (const one of choice.evict) host.used = plus(host.used, one.frees, -1);
    }
    // Allocated: the next request needs other capacity.
    host.used = plus(host.used, allocation(need, overcommit));
  }
  return lifecycle.applyWithin(
    on,
    'evict',
    evict.map(({ id, runner_id }) => ({ id, runner_id })),
    { skipLocked: true },
  );
}

/**
 * The hosts where evictions could help, those with the most evictable capacity first, a few per request: a round reads
 * a bounded number of rows for any size of the fleet.
 */
export function candidateHosts(
  waiting: readonly Need[],
  hosts: readonly HostUsage[],
  overcommit: Overcommit,
): string[] {
  const ids = new Set<string>();
  const requests = waiting.slice(0, MOST_REQUESTS);
  const byReleasable = [...hosts].sort((a, b) => b.releasable.cpu - a.releasable.cpu);
  for (const need of requests) {
    const { cpu, mem_mib } = allocation(need, overcommit);
    byReleasable
      .filter((host) => {
        const { releasable } = host;
        if (releasable.cpu === 0 || !isEligible(need, host)) return false;
        const available = plus(free(host), { ...releasable, disk_mib: 0, gpus: 0 });
        return fits({ cpu, mem_mib, disk_mib: 0, gpus: 0 }, { ...available, disk_mib: 0, gpus: 0 });
      })
      .slice(0, MOST_HOSTS)
      .forEach((host) => ids.add(host.id));
  }
  return [...ids];
}

function frees(one: Taken, overcommit: Overcommit): Evictable['frees'] {
  const disk = one.persistent ? (one.keeps_memory ? -one.mem_mib : 0) : one.disk_mib;
  const { cpu, mem_mib, gpu_host: gpus } = one;
  return allocation(
    { cpu, mem_mib, disk_mib: disk, gpus, overcommitted: isOvercommitted(one, overcommit) },
    overcommit,
  );
}
