/** Image builds as a reconciled kind. The attempt is the generation, and so the fencing token. */
import type { BuildAssignment, BuildReport } from '@releap/contract/runner';
import { queryAll, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { PullCredentials } from '../registries/pull-credentials.ts';
import { ASSIGNMENT_PAGE_ROWS, type ReconciledKind } from '../runners/kind.ts';
import { readReason } from '../runners/read-reason.ts';
import { BY_ID, FINISH, GENERATIONS, PAGE, type BuildRow } from './build-statements.ts';

export interface BuildKindOptions {
  database: Database;
  credentials: PullCredentials;
  /** Called when a runner was sent this build, or has reported its end. */
  onAssigned: (jobId: string, runnerId: string) => void;
  onEnded: (jobId: string, runnerId: string) => void;
  log: Logger;
}

const LOWEST_ID = '00000000-0000-0000-0000-000000000000';

export function createBuildKind(options: BuildKindOptions): ReconciledKind {
  const { database, credentials, onAssigned, onEnded, log } = options;

  /** Adds pull credentials to assignments of builds. */
  async function toAssignments(runnerId: string, rows: readonly BuildRow[]): Promise<BuildAssignment[]> {
    const targets = rows.map((row) => ({
      row,
      project_id: row.project_id,
      root: row.payload.root,
      // A cancelled build pulls nothing.
      desired: isLeasedTo(runnerId, row) ? 'done' : 'deleted',
    }));
    return (await credentials.withPullCredentials(targets)).map(({ row, root }): BuildAssignment => {
      const spec = { image_id: row.image_id, root, docker: row.payload.docker };
      if (!isLeasedTo(runnerId, row)) {
        // A lease of another runner would be a later attempt; an ended build has none.
        const generation = row.status === 'running' ? row.attempts : row.attempts + 1;
        return { kind: 'build', id: row.id, generation, desired: 'cancelled', spec };
      }
      onAssigned(row.id, runnerId);
      return { kind: 'build', id: row.id, generation: row.attempts, desired: 'done', spec };
    });
  }

  return {
    kind: 'build',

    async *assignments(runnerId) {
      for (let after = LOWEST_ID; ; ) {
        const page = await queryAll(database.pool, PAGE, [runnerId, after, ASSIGNMENT_PAGE_ROWS]);
        yield await toAssignments(runnerId, page);
        const last = page.at(-1);
        if (last === undefined || page.length < ASSIGNMENT_PAGE_ROWS) return;
        after = last.id;
      }
    },

    async assignmentsById(runnerId, ids) {
      return toAssignments(runnerId, await queryAll(database.pool, BY_ID, [ids]));
    },

    generations: (runnerIds, afterId, limit) =>
      queryAll(database.pool, GENERATIONS, [runnerIds, afterId, limit]),

    async observe(runnerId, reports) {
      for (const { id, generation, status, detail } of reports as readonly BuildReport[]) {
        // It was cancelled because its job had ended: there is no result to store.
        if (status === 'cancelled') {
          onEnded(id, runnerId);
          continue;
        }
        const error = status === 'done' ? null : (readReason(detail.error) ?? 'its host gave no reason');
        const ended = await queryAll(database.pool, FINISH, [
          id,
          generation,
          runnerId,
          error,
          error === null ? (detail.manifest_name ?? null) : null,
          error === null ? (detail.layer_count ?? null) : null,
        ]);
        onEnded(id, runnerId);
        log.info({ job: id, attempt: generation, error, stored: ended.length === 1 }, 'a build has ended');
      }
    },
  };
}

function isLeasedTo(runnerId: string, row: BuildRow): boolean {
  return row.status === 'running' && row.runner_id === runnerId;
}
