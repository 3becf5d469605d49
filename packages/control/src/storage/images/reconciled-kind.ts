/** Image builds as a reconciled kind. The attempt is the generation, and so the fencing token. */
import { stripVTControlCharacters } from 'node:util';
import { isImageDigest } from '@releap/contract';
import type { BuildAssignment, BuildReport } from '@releap/contract/runner';
import { queryAll, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { PullCredentials } from '../registries/pull-credentials.ts';
import { assignmentPages } from '../../fleet/runners/assignment-pages.ts';
import type { ReconciledKind } from '../../platform/reconciled-kind.ts';
import { readReason } from '../../fleet/runners/read-reason.ts';
import {
  BUILDS,
  BY_ID,
  FINISH,
  GENERATIONS,
  PAGE,
  type BuildAttempt,
  type BuildRow,
} from './build-statements.ts';

export interface BuildKindOptions {
  database: Database;
  credentials: PullCredentials;
  /** Called when a runner was sent this build, or has reported its end. */
  onAssigned: (build: BuildAttempt) => void;
  onEnded: (jobId: string, runnerId: string) => void;
  log: Logger;
}

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
      onAssigned(row);
      return { kind: 'build', id: row.id, generation: row.attempts, desired: 'done', spec };
    });
  }

  return {
    kind: 'build',

    async *assignments(runnerId) {
      for await (const page of assignmentPages(database.pool, PAGE, runnerId))
        yield await toAssignments(runnerId, page);
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
        const error = failureOf(status, detail);
        const ended = await queryAll(database.pool, FINISH, [
          ...BUILDS.values([{ id, attempts: generation, runner_id: runnerId }]),
          error,
          detail.manifest_name ?? null,
          detail.layer_count ?? null,
          detail.bytes ?? null,
          readReason(detail.log_tail, LOG_TAIL_CHARS) ?? null,
        ]);
        onEnded(id, runnerId);
        log.info(
          { job: id, attempt: generation, error: firstLine(error), stored: ended.length === 1 },
          'a build has ended',
        );
      }
    },
  };
}

const LOG_TAIL_CHARS = 8 * 1024;
const ERROR_LINES = 20;
const ERROR_LOG_CHARS = 2_000;

/** Why a build failed, with the last lines of its log; null when it has not. */
function failureOf(status: BuildReport['status'], detail: BuildReport['detail']): string | null {
  if (status === 'done')
    return isImageDigest(detail.manifest_name ?? '') ? null : 'its host reported no digest of the image';
  const reason = readReason(detail.error) ?? 'its host gave no reason';
  const lines = stripVTControlCharacters(detail.log_tail ?? '')
    .trimEnd()
    .split('\n')
    // The log ends with the reason.
    .filter((line, at, all) => at < all.length - 1 || line !== `[releap] ${reason}`)
    .slice(-ERROR_LINES)
    .join('\n')
    .slice(-ERROR_LOG_CHARS);
  return lines === '' ? reason : (readReason(`${reason}\n${lines}`) ?? reason);
}

const firstLine = (text: string | null): string | undefined => text?.split('\n', 1)[0];

function isLeasedTo(runnerId: string, row: BuildRow): boolean {
  return row.status === 'running' && row.runner_id === runnerId;
}
