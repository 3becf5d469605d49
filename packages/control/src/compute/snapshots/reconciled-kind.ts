/** Snapshots as a reconciled kind: their assignments, and the handling of observations. */
import type { SnapshotReport } from '@releap/contract/runner';
import { queryAll, statement, type Database } from '@releap/database';
import { assignedRows } from '../../fleet/runners/assigned-rows.ts';
import type { Generation, ReconciledKind } from '../../platform/reconciled-kind.ts';
import { readReason } from '../../fleet/runners/read-reason.ts';
import { reportBatches } from '../../fleet/runners/report-batches.ts';
import { toSnapshotAssignment, type AssignedSnapshot } from './assignment.ts';
import type { Snapshots } from './snapshots.ts';
import type { SnapshotChange } from './transition-sql.ts';

const COLUMNS = 'id, generation, desired, sandbox_id, kind, parent_id, status';

/** $1 runner, $2 id, $3 rows */
const PAGE = statement<AssignedSnapshot>(
  'snapshot-assignment-page',
  `select ${COLUMNS} from snapshots where held and runner_id = $1 and id > $2 order by id limit $3`,
);
/** $1 ids, $2 runner */
const BY_ID = statement<AssignedSnapshot>(
  'snapshot-assignments-by-id',
  `select ${COLUMNS} from snapshots where held and id = any($1::uuid[]) and runner_id = $2`,
);
/** $1 runners, $2 id, $3 rows */
const GENERATIONS = statement<Generation>(
  'snapshot-generations',
  `select id, runner_id, generation from snapshots
    where held and runner_id = any($1::uuid[]) and id > $2 order by id limit $3`,
);
/** $1 ids */
const PENDING = statement<{ id: string }>(
  'snapshots-still-pending',
  `select id from snapshots where id = any($1::uuid[]) and status = 'pending'`,
);

export function createSnapshotKind(database: Database, snapshots: Snapshots): ReconciledKind {
  return {
    kind: 'snapshot',
    ...assignedRows(database.pool, {
      page: PAGE,
      byId: BY_ID,
      generations: GENERATIONS,
      toAssignment: toSnapshotAssignment,
    }),
    async observe(runnerId, reports) {
      for (const [status, batch] of reportBatches(reports as readonly SnapshotReport[])) {
        const changes = batch.map((report) => toChange(runnerId, report));
        if (status === 'unsupported') await snapshots.apply('observe:failed', await pending(changes));
        else await snapshots.apply(`observe:${status}`, changes);
      }
    },
  };

  /** An unsupported snapshot that is pending fails. One that is ready stays so. */
  async function pending(changes: SnapshotChange[]): Promise<SnapshotChange[]> {
    const rows = await queryAll(database.pool, PENDING, [changes.map(({ id }) => id)]);
    const ids = new Set(rows.map(({ id }) => id));
    return changes.filter(({ id }) => ids.has(id));
  }
}

function toChange(runnerId: string, { id, generation, status, detail }: SnapshotReport): SnapshotChange {
  const { error, no_changes, artifact_ref, manifest_name, disk_bytes, fc_version, cpu_marker, mem_bytes } =
    detail;
  const reason = readReason(status === 'unsupported' ? `its host cannot take it: ${error ?? ''}` : error);
  return {
    id,
    generation,
    runner_id: runnerId,
    ...(reason === undefined ? {} : { error: reason }),
    ...(no_changes === undefined ? {} : { no_changes }),
    ...(artifact_ref === undefined ? {} : { artifact_ref }),
    ...(manifest_name === undefined ? {} : { manifest_name }),
    ...(disk_bytes === undefined ? {} : { disk_bytes }),
    ...(fc_version === undefined ? {} : { fc_version }),
    ...(cpu_marker === undefined ? {} : { cpu_marker }),
    ...(mem_bytes === undefined ? {} : { mem_bytes }),
  };
}
