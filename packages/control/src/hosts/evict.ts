import {
  conflict,
  formatSandboxId,
  parseSandboxId,
  quote,
  sandboxNotFound,
  type HostEvictResponse,
} from '@releap/contract';
import { all, statement } from '@releap/database';
import { decide, FACT_COLUMNS, type SandboxFacts } from '../sandboxes/transitions.ts';
import type { DrainContext } from './drain.ts';

/** $1 host, $2 one sandbox of it, or null for all that are spot */
const SPOT = statement<SandboxFacts & { id: string; region: string }>(
  'host-spot',
  `select id, region, ${FACT_COLUMNS.join(', ')}
     from sandboxes where runner_id = $1 and held
      and case when $2::uuid is null then spot and status in ('assigned', 'building', 'booting', 'running') else id = $2 end
    order by created_at desc`,
);

/**
 * Evicts one spot sandbox of a host, or all of them.
 * @throws 404 when it is not there, 409 when it cannot be evicted as it is
 */
export async function evict(
  { database, lifecycle }: DrainContext,
  host: string,
  vmId: string | undefined,
): Promise<HostEvictResponse> {
  const one = vmId === undefined ? null : parseSandboxId(vmId)?.uuid;
  const rows = one === undefined ? [] : await all(database.pool, SPOT, [host, one]);
  if (vmId !== undefined && rows.length === 0) throw sandboxNotFound(vmId);
  const moved = await lifecycle.apply(
    'evict',
    rows.filter((row) => decide('evict', row) !== undefined).map(({ id }) => ({ id, runner_id: host })),
  );
  const gone = new Set(moved.map((row) => row.id));
  const left = rows
    .filter((row) => !gone.has(row.id))
    .map((row) => ({
      vm_id: formatSandboxId(row.region, row.id),
      why: row.spot ? `it is ${row.status}, and must be running` : 'it is not in the spot tier',
    }));
  if (vmId !== undefined && left[0] !== undefined)
    throw conflict(`sandbox ${quote(vmId)} cannot be evicted: ${left[0].why}`);
  return {
    evicted: moved.map((row) => ({ vm_id: formatSandboxId(row.region, row.id), status: row.status })),
    left,
  };
}
