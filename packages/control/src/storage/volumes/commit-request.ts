/** Requests of clients to commit at once. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { conflict, gatewayTimeout, quote } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { ProjectScope } from '../../tenancy/management/project-scope.ts';
import { TELL } from './copy-statements.ts';
import { mayHaveChanges } from './uncommitted.ts';
import { findVolume } from './volumes.ts';

/** How long hosts may take. */
const DEADLINE_MS = 60_000;
/** Interval at which hosts without a report are checked: one may be lost meanwhile. */
const LOOK_MS = 5_000;

/** No row when no host may have changes. $1 volume */
const REQUEST = statement<{ commit_request: number }>(
  'volume-request-commit',
  `update volumes v set commit_request = commit_request + 1
    where v.id = $1 and v.deleted_at is null
      and exists (select 1 from volume_copies c where c.volume_id = v.id and ${mayHaveChanges('c', '2147483647')})
   returning commit_request`,
);
/** $1 volume, $2 number of the request */
const PENDING = statement<{ runner_id: string; error: string | null }>(
  'volume-commit-pending',
  `select c.runner_id, c.error from volume_copies c where c.volume_id = $1 and ${mayHaveChanges('c', '$2::integer')}
    order by c.runner_id`,
);
/** $1 volume */
const LOST = statement<{ runner_id: string; dirty_since: Date }>(
  'volume-commit-lost',
  `select c.runner_id, c.dirty_since from volume_copies c join runners r on r.id = c.runner_id
    where c.volume_id = $1 and c.desired = 'present' and c.dirty_since is not null and r.status = 'lost'
    order by c.dirty_since limit 1`,
);

export interface CommitRequestContext {
  database: Database;
  changes: ChangeNotifier;
  onChanged: (changes: readonly AssignmentChange[]) => void;
  deadlineMs?: number;
}

/**
 * Resolves when all hosts have committed what was written before.
 * @throws like `findVolume`; 504 with the hosts that have not in time; 409 when a lost host has changes
 */
export async function requestCommit(
  { database, changes, onChanged, deadlineMs = DEADLINE_MS }: CommitRequestContext,
  project: ProjectScope,
  idOrName: string,
  signal: AbortSignal,
): Promise<void> {
  const { id, name } = await findVolume(database.pool, project.id, idOrName);
  const until = performance.now() + deadlineMs;
  // Before the request is written, so that no report is missed.
  using watch = changes.watch(id);
  const requested = await database.transaction(async (on) => {
    await project.audit('volume.commit', { kind: 'volume', id })?.(on);
    return queryOne(on, REQUEST, [id]);
  });
  if (requested !== undefined) onChanged(await queryAll(database.pool, TELL, [id, null]));
  const hosts = async (): Promise<{ runner_id: string; error: string | null }[]> =>
    requested === undefined ? [] : queryAll(database.pool, PENDING, [id, requested.commit_request]);
  for (let pending = await hosts(); pending.length > 0; pending = await hosts()) {
    const left = until - performance.now();
    if (left <= 0 || signal.aborted) {
      const late = pending.map(({ runner_id, error }) => runner_id + (error === null ? '' : ` (${error})`));
      throw gatewayTimeout(
        `volume ${quote(name)} was not committed in time by the hosts ${late.join(', ')}: their commits continue in the background; try again later`,
      );
    }
    await watch.next(Math.ceil(Math.min(left, LOOK_MS)), signal);
  }
  const lost = await queryOne(database.pool, LOST, [id]);
  if (lost !== undefined)
    throw conflict(
      `volume ${quote(name)} is not committed: the host ${lost.runner_id} is lost, with changes since ${lost.dirty_since.toISOString()}`,
      'host_lost',
    );
}
