/** Volumes on hosts as a reconciled kind: their assignments, and the handling of reports. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import type { VolumeAssignment, VolumeReport } from '@releap/contract/runner';
import { queryAll, queryOne, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { assignedRows } from '../../fleet/runners/assigned-rows.ts';
import type { ReconciledKind } from '../../platform/reconciled-kind.ts';
import { readReason } from '../../fleet/runners/read-reason.ts';
import * as sql from './copy-statements.ts';
import type { AssignedCopy } from './copy-statements.ts';

export interface VolumeKindOptions {
  database: Database;
  onChanged: (changes: readonly AssignmentChange[]) => void;
  /** A host has reported something of these volumes that requests may wait for. */
  onReported: (volumeIds: readonly string[]) => void;
  log: Logger;
}

export function createVolumeKind({
  database,
  onChanged,
  onReported,
  log,
}: VolumeKindOptions): ReconciledKind {
  const { pool } = database;

  async function observe(runnerId: string, { id, generation, status, detail }: VolumeReport): Promise<void> {
    if (status === 'deleted') {
      onChanged(await queryAll(pool, sql.REMOVED, [id, runnerId, generation]));
      return;
    }
    const reason = readReason(detail.error);
    const error = status === 'unsupported' ? `it cannot mount volumes: ${reason ?? ''}` : (reason ?? null);
    if (error !== null) log.warn({ volume: id, runner: runnerId, error }, 'a volume is not committed');
    const { number = null, commit = null } = detail;
    // What is not a time would fail the statement, and with it the other reports of the message.
    const since = new Date(detail.dirty_since ?? '');
    const dirtySince =
      detail.dirty_since === undefined ? null : Number.isNaN(since.getTime()) ? new Date() : since;
    const values = [id, runnerId, status === 'present', number, dirtySince, commit, error];
    if ((await queryOne(pool, sql.REPORTED, values)) !== undefined) onReported([id]);
  }

  return {
    kind: 'volume',
    ...assignedRows(pool, { page: sql.PAGE, byId: sql.BY_ID, generations: sql.GENERATIONS, toAssignment }),
    async observe(runnerId, reports) {
      for (const report of reports as readonly VolumeReport[]) await observe(runnerId, report);
    },
  };
}

function toAssignment(row: AssignedCopy): VolumeAssignment {
  const { id, generation, desired, size_gb, number, root, root_bytes } = row;
  return {
    kind: 'volume',
    id,
    generation,
    desired,
    spec: {
      size_gb,
      head: root === null ? null : { number, root, bytes: Number(root_bytes) },
      commit: row.commit_request,
    },
  };
}
