import { notFound, quote, type HostRecord, type SandboxStatus } from '@releap/contract';
import { all, statement, type Queryable } from '@releap/database';
import type { Overcommit } from '../limits.ts';
import { readAllHosts } from '../scheduler/hosts.ts';
import { allocatable } from '../scheduler/placement.ts';

const HELD = statement<{ runner_id: string; status: SandboxStatus; n: number }>(
  'hosts-held',
  'select runner_id, status, count(*)::integer as n from sandboxes where held group by runner_id, status',
);
const KEPT = statement<{ runner_id: string; n: number }>(
  'hosts-snapshots',
  'select runner_id, count(*)::integer as n from snapshots where held group by runner_id',
);

/** Every host that was ever seen, by id. */
export async function hostRecords(on: Queryable, overcommit: Overcommit): Promise<HostRecord[]> {
  const held = await all(on, HELD);
  const kept = await all(on, KEPT);
  return (await readAllHosts(on)).map(({ row, host }) => ({
    id: host.id,
    region: host.region,
    status: row.status,
    ready: host.ready,
    draining: host.draining,
    draining_since: row.draining_since?.toISOString() ?? null,
    force: row.drain_force,
    last_seen_at: row.last_seen_at.toISOString(),
    facts: host.facts,
    used: host.used,
    allocatable: allocatable(host.facts, overcommit),
    sandboxes: Object.fromEntries(
      held.filter((one) => one.runner_id === host.id).map(({ status, n }) => [status, n]),
    ),
    snapshots: kept.find((one) => one.runner_id === host.id)?.n ?? 0,
  }));
}

export async function hostRecord(on: Queryable, overcommit: Overcommit, id: string): Promise<HostRecord> {
  const host = (await hostRecords(on, overcommit)).find((one) => one.id === id);
  if (host === undefined) throw hostNotFound(id);
  return host;
}

export function hostNotFound(id: string): Error {
  return notFound(`host ${quote(id)} not found`);
}
