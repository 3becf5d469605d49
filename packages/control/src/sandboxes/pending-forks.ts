/**
 * Sources of forks are kept, even deleted ones, until the host has taken what the fork needs: memory and disk are nowhere
 * else. `sandboxes.pending_fork` names the fork; a fork that has left its first statuses has what it needs, or never will.
 */
import { queryAll, statement, type Database, type SandboxRow } from '@releap/database';
import type { RowLifecycle } from '../lifecycle/apply.ts';
import type { Change } from './transition-sql.ts';
import { MACHINE, type SandboxEvent } from './transitions.ts';

/** A fork in one of these still depends on its source. */
const DEPENDS = ['pending', 'assigned'];
const DEPENDS_SQL = DEPENDS.map((status) => `'${status}'`).join(', ');

const TAKEN = statement<{ id: string; pending_fork: string }>(
  'sandboxes-fork-taken',
  `select s.id, s.pending_fork from sandboxes s left join sandboxes c on c.id = s.pending_fork
    where s.pending_fork is not null and (c.id is null or c.status not in (${DEPENDS_SQL})) limit 500`,
);

/** Events that a fork may leave its first statuses by. */
const LEAVES: ReadonlySet<SandboxEvent> = new Set(
  MACHINE.transitions
    .filter((row) => row.to !== 'same' && row.from.some((status) => DEPENDS.includes(status)))
    .map((row) => row.on),
);

/** Whether one of the rows that this event has moved may be a fork that has just got what it needs. */
export function mayEndFork(event: SandboxEvent, rows: readonly SandboxRow[]): boolean {
  return LEAVES.has(event) && rows.some((row) => row.forked_from !== null && !DEPENDS.includes(row.status));
}

/** Lets go of the sources whose pending fork depends on them no more; deleted ones are removed from their host. */
export async function releaseForkSources(
  database: Database,
  apply: RowLifecycle<SandboxEvent, SandboxRow, Change>['apply'],
): Promise<void> {
  await apply('fork-taken', await queryAll(database.pool, TAKEN));
}
