import {
  conflict,
  formatSandboxId,
  parseSandboxId,
  quote,
  sandboxNotFound,
  type HostEvictResponse,
} from '@releap/contract';
import { queryAll, statement } from '@releap/database';
import { decide, FACT_COLUMNS, type SandboxFacts } from '../sandboxes/transitions.ts';
import type { DrainContext } from './drain.ts';

const COLUMNS = `id, runner_id, region, ${FACT_COLUMNS.join(', ')}`;
type Held = SandboxFacts & { id: string; runner_id: string; region: string };

/** $1 host */
const SPOT = statement<Held>(
  'host-spot',
  `select ${COLUMNS} from sandboxes
    where runner_id = $1 and held and spot and status in ('assigned', 'building', 'booting', 'running')
    order by created_at desc`,
);
/** $1 sandbox, $2 host, or null for any */
const ONE = statement<Held>(
  'host-sandbox',
  `select ${COLUMNS} from sandboxes where id = $1 and held and ($2::uuid is null or runner_id = $2)`,
);

/** Evicts all spot sandboxes of a host. */
export async function evictAll(context: DrainContext, host: string): Promise<HostEvictResponse> {
  return evict(context, await queryAll(context.database.pool, SPOT, [host]));
}

/**
 * Evicts one spot sandbox.
 * @param host only if it is placed there; null: on any host
 * @throws 404 when it is on no host, or not on this one; 409 when its state does not allow it
 */
export async function evictOne(
  context: DrainContext,
  vmId: string,
  host: string | null,
): Promise<HostEvictResponse> {
  const id = parseSandboxId(vmId)?.uuid;
  const rows = id === undefined ? [] : await queryAll(context.database.pool, ONE, [id, host]);
  if (rows.length === 0) throw sandboxNotFound(vmId);
  const outcome = await evict(context, rows);
  if (outcome.remaining[0] !== undefined)
    throw conflict(`sandbox ${quote(vmId)} cannot be evicted: ${outcome.remaining[0].reason}`, 'wrong_state');
  return outcome;
}

async function evict({ lifecycle }: DrainContext, rows: readonly Held[]): Promise<HostEvictResponse> {
  const moved = await lifecycle.apply(
    'evict',
    rows.filter((row) => decide('evict', row) !== undefined).map(({ id, runner_id }) => ({ id, runner_id })),
  );
  const evicted = new Set(moved.map((row) => row.id));
  return {
    evicted: moved.map((row) => ({ vm_id: formatSandboxId(row.region, row.id), status: row.status })),
    remaining: rows
      .filter((row) => !evicted.has(row.id))
      .map((row) => ({
        vm_id: formatSandboxId(row.region, row.id),
        reason: row.spot ? `it is ${row.status}, and must be running` : 'it is not in the spot tier',
      })),
  };
}
