import {
  formatSandboxId,
  notFound,
  quote,
  type HostMove,
  type HostRecord,
  type SandboxStatus,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { OF_HOST } from '../moves/statements.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import { readAllHosts, readHostRow, type HostRow } from '../scheduler/hosts.ts';
import { allocatable, type Host } from '../scheduler/placement.ts';

interface Details {
  runner_id: string;
  /** Of the operator. */
  name: string | null;
  join_token: HostRecord['join_token'];
  sandboxes: Partial<Record<SandboxStatus, number>>;
  snapshots: number;
  volumes: number;
  moving: number;
}

/**
 * What the operator sees besides what the scheduler reads. A host joins with one token: later ones never let a known host join. $1 one
 * host, or null for all
 */
const DETAILS = statement<Details>(
  'hosts-details',
  `select r.id as runner_id, r.name,
          (select json_build_object('id', c.join_token_id, 'name', t.name)
             from runner_credentials c left join join_tokens t on t.id = c.join_token_id
            where c.runner_id = r.id and c.join_token_id is not null limit 1) as join_token,
          coalesce(u.sandboxes, '{}') as sandboxes, coalesce(k.snapshots, 0) as snapshots,
          (select count(*)::integer from volume_copies c
            where c.runner_id = r.id and c.desired = 'present' and c.dirty_since is not null) as volumes,
          (select count(*)::integer from sandbox_moves m
            where (m.source_id = r.id and m.status in ('waiting', 'storing', 'placing')) or (m.copy_on = r.id and m.status <> 'placing')) as moving
     from runners r
     left join (
       select runner_id, jsonb_object_agg(status, n) as sandboxes
         from (select runner_id, status, count(*) as n from sandboxes
                where held and ($1::uuid is null or runner_id = $1) group by runner_id, status) c
        group by runner_id
     ) u on u.runner_id = r.id
     left join (
       select runner_id, count(*)::integer as snapshots from snapshots
        where held and ($1::uuid is null or runner_id = $1) group by runner_id
     ) k on k.runner_id = r.id
    where $1::uuid is null or r.id = $1`,
);

/** All hosts by id, without forgotten ones. */
export async function hostRecords(on: Queryable, overcommit: Overcommit): Promise<HostRecord[]> {
  const details = new Map((await queryAll(on, DETAILS, [null])).map((one) => [one.runner_id, one]));
  return (await readAllHosts(on, overcommit)).map((found) => toRecord(found, details.get(found.row.id)));
}

/** @throws 404 */
export async function hostRecord(on: Queryable, overcommit: Overcommit, id: string): Promise<HostRecord> {
  const [details, found] = [await queryOne(on, DETAILS, [id]), await readHostRow(on, id, overcommit)];
  if (found === undefined) throw hostNotFound(id);
  return toRecord(found, details);
}

function toRecord({ row, host }: { row: HostRow; host: Host }, details: Details | undefined): HostRecord {
  return {
    id: host.id,
    region: host.region,
    status: row.status,
    ready: host.ready,
    draining: host.draining,
    draining_since: row.draining_since?.toISOString() ?? null,
    force: row.drain_force,
    move: row.drain_move,
    last_seen_at: row.last_seen_at.toISOString(),
    facts: host.facts,
    name: details?.name ?? host.facts.name ?? null,
    renamed: typeof details?.name === 'string',
    join_token: details?.join_token ?? null,
    classes: { cpu_type: null, network_class: null, disk_class: null, ...host.classes },
    used: host.used,
    allocatable: allocatable(host.facts),
    held_memory: { mem_mib: row.held_mem_mib, reclaimable_mib: row.reclaimable_mem_mib },
    free_disk_mib: row.free_disk_mib,
    sandboxes: details?.sandboxes ?? {},
    snapshots: details?.snapshots ?? 0,
    moving: details?.moving ?? 0,
    uncommitted_volumes: details?.volumes ?? 0,
  };
}

/** From the host to others. */
export async function hostMoves(on: Queryable, id: string): Promise<HostMove[]> {
  return (await queryAll(on, OF_HOST, [id])).map((row) => ({
    vm_id: formatSandboxId(row.region, row.sandbox_id),
    status: row.status,
    target: row.target_id,
    resumes: row.resumes,
    pause_ms: row.pause_ms === null ? null : Math.round(row.pause_ms),
    error: row.error,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  }));
}

export function hostNotFound(id: string): Error {
  return notFound(`host ${quote(id)} not found`, 'host_not_found');
}
