/** Writes the placements of a round, as far as the hosts still have the capacity. */
import { queryAll, type Database, type SandboxRow } from '@releap/database';
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import { PLACE as PLACE_VOLUMES } from '../../storage/volumes/copy-statements.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import { allocateInBatch } from './allocate.ts';
import { hasHostChanged, requireCapacity } from './hosts.ts';
import type { Overcommit } from './overcommit.ts';
import type { Need } from './placement.ts';

export interface PlaceOptions {
  database: Database;
  lifecycle: Lifecycle;
  artifacts: Pick<Artifacts, 'placed'>;
  limits: { overcommit: Overcommit };
}

export interface Placement {
  id: string;
  runnerId: string;
  need: Need;
  /** Something has to be fetched to its host. */
  hasArtifact: boolean;
}

/** What a transaction placed, to be announced. */
export interface Placed {
  rows: SandboxRow[];
  fetches: Awaited<ReturnType<Artifacts['placed']>>;
  copies: AssignmentChange[];
}

/** A host has changed since the round read it: another transaction has allocated its capacity, or it is drained, or gone. */
export class HostChangedError extends Error {}

/**
 * One transaction, as a batch: its hosts are not locked while this process does something else. Sandboxes that another transaction has
 * locked or moved are left alone.
 * @throws HostChangedError when a host would be over its capacity: nothing is placed
 */
export async function place(
  { database, lifecycle, artifacts, limits: { overcommit } }: PlaceOptions,
  placements: readonly Placement[],
): Promise<Placed> {
  const ids = (some: (one: Placement) => boolean): string[] => placements.filter(some).map(({ id }) => id);
  const changes = placements.map(({ id, runnerId }) => ({ id, place_on: runnerId }));
  const made = ids(({ hasArtifact }) => hasArtifact);
  const attached = ids(({ need }) => (need.volumes ?? []).length > 0);
  try {
    const [rows, , fetches, copies] = await allocateInBatch(database, (on) => [
      lifecycle.applyWithin(on, 'place', changes, { skipLocked: true }),
      requireCapacity(
        on,
        overcommit,
        ids(() => true),
      ),
      made.length === 0 ? NOTHING : artifacts.placed(on, made),
      attached.length === 0 ? NOTHING : queryAll(on, PLACE_VOLUMES, [attached]),
    ]);
    return { rows, fetches, copies };
  } catch (error) {
    throw hasHostChanged(error) ? new HostChangedError() : error;
  }
}

const NOTHING: Promise<AssignmentChange[]> = Promise.resolve([]);
