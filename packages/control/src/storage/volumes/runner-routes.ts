/** The operations of runners on volumes. Blobs are read and written with those of artifacts. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { internalOperations } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { commitVolume } from './commits.ts';
import type { VolumeMetrics } from './metrics.ts';
import { createRunnerVolumes } from './runner-volumes.ts';
import { createVolumeUploads } from './uploads.ts';

export function runnerVolumeRoutes(
  { runner: plane }: Planes,
  {
    database,
    metrics,
    onChanged,
  }: {
    database: Database;
    metrics: VolumeMetrics;
    onChanged: (changes: readonly AssignmentChange[]) => void;
  },
): void {
  const volumes = createRunnerVolumes(database, onChanged);
  const uploads = createVolumeUploads(database);
  plane.operation(internalOperations.getRunnerVolume, ({ params, query, runner }) =>
    volumes.read(runner.runnerId, params.id, query.commit ?? 0),
  );
  plane.operation(internalOperations.openRunnerVolume, ({ params, runner }) =>
    volumes.open(runner.runnerId, params.id),
  );
  plane.operation(internalOperations.listMissingVolumeBlobs, async ({ params, body, runner }) => {
    const present = await uploads.present(runner.runnerId, params.id, body.digests);
    return { missing: body.digests.filter((digest) => !present.has(digest)) };
  });
  plane.operation(internalOperations.storeVolumeCommit, ({ params, body, runner }) =>
    metrics.commit(commitVolume({ database, onChanged }, runner.runnerId, params.id, body)),
  );
}
