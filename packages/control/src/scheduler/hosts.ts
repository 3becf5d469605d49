/** What the hosts offer and what is promised of it, as the rows have it. */
import type { RunnerFacts } from '@releap/contract';
import { all, first, statement, type Queryable } from '@releap/database';
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
  last_seen_at: Date;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpus: number;
}

/** Disk is taken by whatever a host holds, kept memory and snapshots too; cores and memory by what may run. */
function select(held: string, hosts: string): string {
  const running = OCCUPIES_CPU.map((status) => `'${status}'`).join(', ');
  return `select r.id, r.region, r.status, r.ready, r.draining_since, r.drain_force, r.facts, r.last_seen_at,
          coalesce(u.cpu, 0) as cpu, coalesce(u.mem_mib, 0)::double precision as mem_mib,
          (coalesce(u.disk_mib, 0) + coalesce(k.disk_mib, 0))::double precision as disk_mib, coalesce(u.gpus, 0)::integer as gpus
     from runners r left join (
       select runner_id,
              sum(cpu) filter (where status in (${running})) as cpu,
              sum(mem_mib) filter (where status in (${running})) as mem_mib,
              sum(gpu_host) filter (where status in (${running})) as gpus,
              sum(scratch_mib::bigint + coalesce(docker_data_mib, 0) + case when has_memory then mem_mib else 0 end) as disk_mib
         from sandboxes where ${held} group by runner_id
     ) u on u.runner_id = r.id
     left join (
       select runner_id, ceil(sum(coalesce(disk_bytes, 0) + coalesce(mem_bytes, 0)) / 1048576) as disk_mib
         from snapshots where ${held} group by runner_id
     ) k on k.runner_id = r.id
    where ${hosts}`;
}

const HOSTS = statement<HostRow>('schedule-hosts', select('held', `r.status <> 'lost'`));
const ALL_HOSTS = statement<HostRow>('schedule-hosts-all', `${select('held', 'true')} order by r.id`);
const HOST = statement<HostRow>('schedule-host', select('held and runner_id = $1', 'r.id = $1'));

/** All that are not lost. */
export async function readHosts(on: Queryable): Promise<Host[]> {
  return (await all(on, HOSTS)).map(toHost);
}

/** Lost ones too, with what the rows say of them. */
export async function readAllHosts(on: Queryable): Promise<{ row: HostRow; host: Host }[]> {
  return (await all(on, ALL_HOSTS)).map((row) => ({ row, host: toHost(row) }));
}

/** One of them, and since when it has not been heard from if it is lost. */
export async function readHost(
  on: Queryable,
  id: string,
): Promise<(Host & { lostSince: Date | null }) | undefined> {
  const row = await first(on, HOST, [id]);
  return row && { ...toHost(row), lostSince: row.status === 'lost' ? row.last_seen_at : null };
}

function toHost(row: HostRow): Host {
  return {
    id: row.id,
    region: row.region,
    ready: row.status === 'online' && row.ready,
    draining: row.draining_since !== null,
    facts: row.facts,
    used: { cpu: row.cpu, mem_mib: row.mem_mib, disk_mib: row.disk_mib, gpus: row.gpus },
  };
}
