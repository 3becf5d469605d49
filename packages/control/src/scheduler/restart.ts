/**
 * Starts and resumes. A sandbox that stands still keeps its host, where its disk is, but none of the host's cores
 * and memory: it gets them back only if they are free. When they are not, it is told so at once and stays as it is,
 * because waiting for others to end would have no time limit that anybody knows.
 */
import type { Database } from '@releap/database';
import type { ControlLimits } from '../limits.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { Change, SandboxRow } from '../sandboxes/transition-sql.ts';
import { readHost } from './hosts.ts';
import { excess, type Host, type Room } from './placement.ts';
import { promiseAlone } from './promise-lock.ts';

export interface RestartContext {
  database: Database;
  lifecycle: Lifecycle;
  limits: ControlLimits;
}

/** What came of it: moved, or refused by the host (why, as the end of a sentence), or neither: somebody was first. */
export type Restarted = { moved: SandboxRow } | { refused: string } | undefined;

class NoRoom extends Error {}

/** Pulls the trigger if the host can take it: both or nothing. */
export async function restart(
  { database, lifecycle, limits }: RestartContext,
  trigger: 'start' | 'resume',
  change: Change,
): Promise<Restarted> {
  let moved: SandboxRow | undefined;
  try {
    moved = await database.transaction(async (client) => {
      await promiseAlone(client);
      const [row] = await lifecycle.applyWithin(client, trigger, [change]);
      if (row === undefined) return undefined;
      // It counts already: what is promised now includes it.
      const host = row.runner_id === null ? undefined : await readHost(client, row.runner_id);
      const need = { cpu: row.cpu, mem_mib: row.mem_mib, disk_mib: 0, gpus: row.gpu_host };
      const why = host === undefined ? 'it has no host' : unable(host, need, limits);
      if (why !== undefined) throw new NoRoom(why);
      return row;
    });
  } catch (error) {
    if (error instanceof NoRoom) return { refused: error.message };
    throw error;
  }
  if (moved === undefined) return undefined;
  lifecycle.announce([moved]);
  return { moved };
}

/** Why this host cannot take what is counted in already, as the end of a sentence about the sandbox whose disk it has. */
export function unable(
  host: Host & { lostSince: Date | null },
  need: Room,
  limits: ControlLimits,
): string | undefined {
  if (host.lostSince !== null)
    return `its host ${host.id}, which has its disk, has not been heard from since ${host.lostSince.toISOString()}`;
  if (host.draining) return `its host ${host.id}, which has its disk, is being drained`;
  const over = excess(need, host, limits.overcommit);
  return over && `its host ${host.id}, which has its disk, has no room for it now: ${over}`;
}
