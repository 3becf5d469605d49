/** Artifacts on hosts as a reconciled kind: their assignments, and the handling of reports. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import type { ArtifactAssignment, ArtifactReport } from '@releap/contract/runner';
import { queryAll, queryOne, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { assignedRows } from '../../fleet/runners/assigned-rows.ts';
import type { ReconciledKind } from '../../platform/reconciled-kind.ts';
import { readReason } from '../../fleet/runners/read-reason.ts';
import * as sql from './artifact-statements.ts';
import { blobRows } from './blob-rows.ts';
import type { AssignedLocation } from './artifact-statements.ts';

/** Pause before the second attempt of an upload; it doubles with each further one. */
const RETRY_MS = 5_000;

export interface ArtifactKindOptions {
  database: Database;
  onChanged: (changes: readonly AssignmentChange[]) => void;
  /** An artifact was stored: regions may wait for it. */
  onStored: () => void;
  log: Logger;
}

export function createArtifactKind({
  database,
  onChanged,
  onStored,
  log,
}: ArtifactKindOptions): ReconciledKind {
  const { pool } = database;

  async function observe(runnerId: string, report: ArtifactReport): Promise<void> {
    const { id, generation, status, detail } = report;
    const at = [id, runnerId, generation];
    const error = readReason(detail.error) ?? 'its host gave no reason';
    switch (status) {
      case 'stored':
        return storeParts(runnerId, report);
      case 'present':
        await queryAll(pool, sql.PRESENT, at);
        return;
      case 'deleted':
        onChanged(await queryAll(pool, sql.LOST, at));
        return;
      case 'failed':
      case 'unsupported': {
        const ended = await queryAll(pool, sql.END_UPLOAD, [...at, error, RETRY_MS]);
        const lost = ended.length > 0 ? [] : await queryAll(pool, sql.LOST, at);
        if (ended.length + lost.length > 0)
          log.warn({ location: id, runner: runnerId, error }, 'an artifact could not be transferred');
        onChanged([...ended, ...lost]);
      }
    }
  }

  /** All parts or none. Parts that are not in the store, or whose content the runner has not shown to have, are refused. */
  async function storeParts(runnerId: string, { id, generation, detail }: ArtifactReport): Promise<void> {
    const parts = detail.parts ?? [];
    const names = parts.map(({ name }) => name);
    const digests = parts.map(({ digest }) => digest);
    const bytes = parts.map((part) => part.bytes);
    const changes = await database.transaction(async (client) => {
      const upload = await queryOne(client, sql.LOCK_UPLOAD, [id, runnerId, generation]);
      if (upload === undefined) return [];
      const { proven: isProven, values } = blobRows(upload.store_id);
      const proven = await queryAll(client, isProven, values(digests, bytes, id, upload.project_id));
      const known = new Set(proven.map(({ digest }) => digest));
      const lacking = digests.find((digest) => !known.has(digest));
      const isValid = parts.length > 0 && new Set(names).size === names.length && lacking === undefined;
      if (isValid)
        await queryAll(client, sql.STORE_PARTS, [upload.artifact_id, names, digests, bytes, upload.store_id]);
      const error = isValid ? null : `its part ${lacking ?? '(none)'} is not in the store`;
      if (error !== null) log.warn({ location: id, runner: runnerId, error }, 'an upload is incomplete');
      return queryAll(client, sql.END_UPLOAD, [id, runnerId, generation, error, RETRY_MS]);
    });
    onChanged(changes);
    onStored();
  }

  return {
    kind: 'artifact',
    ...assignedRows(pool, { page: sql.PAGE, byId: sql.BY_ID, generations: sql.GENERATIONS, toAssignment }),
    async observe(runnerId, reports) {
      for (const report of reports as readonly ArtifactReport[]) await observe(runnerId, report);
    },
  };
}

function toAssignment(row: AssignedLocation): ArtifactAssignment {
  return {
    kind: 'artifact',
    id: row.id,
    generation: row.generation,
    desired: row.desired,
    spec: {
      artifact_id: row.artifact_id,
      type: row.kind,
      ...(row.digest === null ? {} : { digest: row.digest }),
      ...(row.sandbox_id === null ? {} : { vm_id: row.sandbox_id }),
    },
  };
}
