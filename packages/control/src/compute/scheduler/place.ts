/** Writes the placements of a round, as far as the hosts still have the capacity. */
import { queryAll, type Database, type SandboxRow } from '@releap/database';
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import { PLACE as PLACE_VOLUMES } from '../../storage/volumes/copy-statements.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import { allocate } from './allocate.ts';
import { readSomeHosts } from './hosts.ts';
import type { Overcommit } from './overcommit.ts';
import { shortfall, type Need } from './placement.ts';

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
 * One transaction. Sandboxes that another one has locked or moved are left alone.
 * @throws HostChangedError when a host would be over its capacity: nothing is placed
 */
export async function place(
  { database, lifecycle, artifacts, limits: { overcommit } }: PlaceOptions,
  placements: readonly Placement[],
): Promise<Placed> {
  const of = new Map(placements.map((one) => [one.id, one]));
  return allocate(database, async (client) => {
    const changes = placements.map(({ id, runnerId }) => ({ id, place_on: runnerId }));
    const rows = await lifecycle.applyWithin(client, 'place', changes, { skipLocked: true });
    if (rows.length === 0) return { rows, fetches: [], copies: [] };
    // Of hosts whose rows this transaction has locked: they include what it has placed.
    const read = await readSomeHosts(client, overcommit, [...new Set(rows.map(hostOf))]);
    const hosts = new Map(read.map((host) => [host.id, host]));
    for (const row of rows) {
      const [host, one] = [hosts.get(hostOf(row)), of.get(row.id)];
      if (host === undefined || !host.ready || host.draining) throw new HostChangedError();
      if (one === undefined || shortfall(one.need, host, overcommit) !== undefined)
        throw new HostChangedError();
    }
    const made = rows.filter(({ id }) => of.get(id)?.hasArtifact === true).map(({ id }) => id);
    const fetches = made.length === 0 ? [] : await artifacts.placed(client, made);
    const attached = rows.filter(({ volume_count }) => volume_count > 0).map(({ id }) => id);
    const copies = attached.length === 0 ? [] : await queryAll(client, PLACE_VOLUMES, [attached]);
    return { rows, fetches, copies };
  });
}

const hostOf = ({ runner_id: id }: SandboxRow): string => id ?? '';
