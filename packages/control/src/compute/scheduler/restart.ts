/**
 * Starts and resumes. A stopped or paused sandbox stays on its host, which has its disk, without cores and memory: it
 * gets them back only if they are free. Otherwise the request is refused at once instead of queued, because the wait for
 * others to end would have no known limit. Spot sandboxes are evicted for it, so that a retry succeeds.
 */
import { OBJECT_STORES_CAPABILITY, VOLUMES_CAPABILITY } from '@releap/contract/runner';
import { queryOne, statement, type Database } from '@releap/database';
import type { Overcommit } from './overcommit.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import type { Change } from '../sandboxes/transition-sql.ts';
import { readHost, readSomeHosts } from './hosts.ts';
import { candidateHosts, preempt } from './preempt.ts';
import { isOvercommitted, MADE_AFTER_START, shortfall, type Demand, type Host } from './placement.ts';
import { allocate } from './allocate.ts';

export interface RestartContext {
  database: Database;
  lifecycle: Lifecycle;
  limits: { overcommit: Overcommit };
}

/** Moved; or refused for lack of capacity (`why` is the end of a sentence); or neither: another event was first. */
export type Restarted = { moved: SandboxRow } | { refused: string } | undefined;

/** $1 sandbox */
const HAS_STORES = statement(
  'restart-has-stores',
  'select 1 from object_store_mounts where sandbox_id = $1 limit 1',
);

/** Thrown inside a transaction to roll back the allocation. The message is the end of a sentence. */
export class InsufficientCapacityError extends Error {
  readonly row: SandboxRow;
  readonly need: Demand;

  constructor(why: string, row: SandboxRow, need: Demand) {
    super(why);
    this.row = row;
    this.need = need;
  }
}

/** Applies the event if the host has the capacity: both or nothing. */
export async function restart(
  context: RestartContext,
  event: 'start' | 'resume',
  change: Change,
): Promise<Restarted> {
  const { database, lifecycle, limits } = context;
  let moved: SandboxRow | undefined;
  try {
    moved = await allocate(database, async (client) => {
      const [row] = await lifecycle.applyWithin(client, event, [change]);
      if (row === undefined) return undefined;
      // The allocations of its host include it already, and stay as they are until the end of this transaction.
      const host =
        row.runner_id === null ? undefined : await readHost(client, row.runner_id, limits.overcommit);
      const need = {
        cpu: row.cpu,
        mem_mib: row.mem_mib,
        disk_mib: 0,
        gpus: row.gpu_host,
        overcommitted: isOvercommitted(row, limits.overcommit),
      };
      const can = (capability: string): boolean => host?.capabilities?.includes(capability) === true;
      // No eviction would help.
      const nothing = { ...need, cpu: 0, mem_mib: 0, gpus: 0 };
      // Without them it would boot with empty folders in their place.
      if (row.volume_count > 0 && !can(VOLUMES_CAPABILITY))
        throw new InsufficientCapacityError('its host cannot mount volumes now', row, nothing);
      if (
        row.start_from === 'disk' &&
        !can(OBJECT_STORES_CAPABILITY) &&
        (await queryOne(client, HAS_STORES, [row.id])) !== undefined
      )
        throw new InsufficientCapacityError(
          `its host cannot mount object stores yet: ${MADE_AFTER_START}`,
          row,
          nothing,
        );
      const why = host === undefined ? 'it has no host' : admissionError(host, need, limits);
      if (why !== undefined) throw new InsufficientCapacityError(why, row, need);
      return row;
    });
  } catch (error) {
    if (error instanceof InsufficientCapacityError) return { refused: await preemptFor(context, error) };
    throw error;
  }
  if (moved === undefined) return undefined;
  lifecycle.announce([moved]);
  return { moved };
}

/** Why the sandbox's host cannot run it, with the sandbox allocated already; the end of a sentence. */
export function admissionError(
  host: Host & { lostSince: Date | null },
  need: Demand,
  limits: { overcommit: Overcommit },
): string | undefined {
  if (host.lostSince !== null)
    return `its host ${host.id}, which has its disk, has not been heard from since ${host.lostSince.toISOString()}`;
  if (host.draining) return `its host ${host.id}, which has its disk, is being drained`;
  const over = shortfall(need, host, limits.overcommit);
  return over && `its host ${host.id}, which has its disk, lacks the capacity for it now: ${over}`;
}

/** The refusal, after evicting spot sandboxes on its host if that helps. */
export async function preemptFor(
  { database, lifecycle, limits }: RestartContext,
  { message, row, need }: InsufficientCapacityError,
): Promise<string> {
  if (row.spot) return message;
  const moved = await allocate(database, async (client) => {
    const there = { ...need, region: row.region, arch: row.cpu_arch, requiredRunnerId: row.runner_id };
    const known = await readSomeHosts(
      client,
      limits.overcommit,
      row.runner_id === null ? [] : [row.runner_id],
    );
    const candidates = candidateHosts([there], known, limits.overcommit);
    return preempt(client, lifecycle, [there], limits.overcommit, candidates);
  });
  if (moved.length === 0) return message;
  lifecycle.announce(moved);
  return `${message}; spot sandboxes are being evicted for it: try again in a moment`;
}
