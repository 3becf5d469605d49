/** Makes room for what found none and pays in full, by evicting spot sandboxes. Part of a placement round. */
import { all, statement, type Queryable } from '@releap/database';
import type { Overcommit } from '../limits.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import { chooseEviction, hostWithCapacity, plus, type Evictable } from './eviction.ts';
import { readHosts } from './hosts.ts';
import type { Host, Need } from './placement.ts';

interface Taken {
  id: string;
  runner_id: string;
  created_at: Date;
  persistent: boolean;
  leaving: boolean;
  keeps_memory: boolean;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpu_host: number;
}

/**
 * Spot sandboxes that the table lets be evicted, and whatever is on its way out: that room comes without anybody
 * going. One whose eviction did not succeed is left alone for a minute.
 */
const TAKEN = statement<Taken>(
  'schedule-evictable',
  `select id, runner_id, created_at, persistent, status in ('stopping', 'pausing', 'deleting') as leaving,
          status = 'pausing' or (status = 'running' and persistent and volume_count = 0 and docker_data_mib is null and gpu_host = 0) as keeps_memory,
          cpu, mem_mib, gpu_host, scratch_mib::double precision + coalesce(docker_data_mib, 0) as disk_mib
     from sandboxes
    where held and runner_id is not null and (
      status in ('stopping', 'pausing', 'deleting')
      or (spot and (spot_evicted_at is null or spot_evicted_at < now() - interval '1 minute')
          and (status = 'running' or (not persistent and status in ('assigned', 'building', 'booting')))))`,
);

/** For how many that wait somebody is looked for in one round. */
const MOST = 50;

/**
 * @param waiting what pays in full and found no room, in the order of the queue
 */
export async function preempt(
  on: Queryable,
  lifecycle: Lifecycle,
  waiting: readonly Need[],
  overcommit: Overcommit,
): Promise<SandboxRow[]> {
  if (waiting.length === 0) return [];
  const taken = await all(on, TAKEN);
  let spot: Evictable[] = taken
    .filter((one) => !one.leaving)
    .map(({ id, runner_id, created_at, ...one }) => ({ id, runner_id, created_at, frees: frees(one) }));
  if (spot.length === 0) return [];
  // Read after those: what has left meanwhile is then counted twice, and one round later right. The other way round it
  // would count as there, and another one would have to go for nothing.
  const hosts = await readHosts(on);
  // The hosts as they will be when what is leaving has left.
  const future = hosts.map((host) => ({
    ...host,
    used: taken
      .filter((one) => one.leaving && one.runner_id === host.id)
      .reduce((used, one) => plus(used, frees(one), -1), host.used),
  }));
  const evict: Evictable[] = [];
  for (const need of waiting.slice(0, MOST)) {
    let host: Host | undefined = hostWithCapacity(need, future, overcommit);
    if (host === undefined) {
      const choice = chooseEviction(need, future, spot, overcommit);
      if (choice === undefined) continue;
      host = choice.host;
      evict.push(...choice.evict);
      spot = spot.filter((one) => !choice.evict.includes(one));
      for (const one of choice.evict) host.used = plus(host.used, one.frees, -1);
    }
    // Promised: the next one needs other room.
    host.used = plus(host.used, need);
  }
  return lifecycle.applyWithin(
    on,
    'evict',
    evict.map(({ id, runner_id }) => ({ id, runner_id })),
  );
}

function frees(one: Omit<Taken, 'id' | 'runner_id' | 'created_at'>): Evictable['frees'] {
  const disk = one.persistent ? (one.keeps_memory ? -one.mem_mib : 0) : one.disk_mib;
  return { cpu: one.cpu, mem_mib: one.mem_mib, disk_mib: disk, gpus: one.gpu_host };
}
