/**
 * A fork's source, even a deleted one, stays on its host until the host has captured its memory and disk, which exist
 * nowhere else. `sandboxes.pending_fork` is the fork's id; a fork that has left its first statuses has been captured or
 * has failed.
 */
import { queryAll, statement, type Database, type SandboxRow } from '@releap/database';
import type { RowLifecycle } from '../../platform/lifecycle/apply.ts';
import type { Change } from './transition-sql.ts';
import { MACHINE, type SandboxEvent } from './transitions.ts';

/** Statuses in which a fork still depends on its source. */
const DEPENDS = ['pending', 'assigned'];
const DEPENDS_SQL = DEPENDS.map((status) => `'${status}'`).join(', ');

const TAKEN = statement<{ id: string; pending_fork: string }>(
  'sandboxes-fork-taken',
  `select s.id, s.pending_fork from sandboxes s left join sandboxes c on c.id = s.pending_fork
    where s.pending_fork is not null and (c.id is null or c.status not in (${DEPENDS_SQL})) limit 500`,
);

/** Events by which a fork may leave its first statuses. */
const LEAVES: ReadonlySet<SandboxEvent> = new Set(
  MACHINE.transitions
    .filter((row) => row.to !== 'same' && row.from.some((status) => DEPENDS.includes(status)))
    .map((row) => row.on),
);

/** Whether one of these moved rows may be a fork that no longer depends on its source. */
export function mayEndFork(event: SandboxEvent, rows: readonly SandboxRow[]): boolean {
  return LEAVES.has(event) && rows.some((row) => row.forked_from !== null && !DEPENDS.includes(row.status));
}

/** Releases sources that their pending fork no longer needs; deleted ones are then removed from their host. */
export async function releaseForkSources(
  database: Database,
  apply: RowLifecycle<SandboxEvent, SandboxRow, Change>['apply'],
): Promise<void> {
  await apply('fork-taken', await queryAll(database.pool, TAKEN));
}
