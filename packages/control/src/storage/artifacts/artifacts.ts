/** Which images, snapshots and sandboxes are uploaded to the store, and removed from it and from hosts. docs/decisions/0025-artifacts.md */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { queryAll, queryOne, type Database, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import * as sql from './artifact-statements.ts';
import * as replicas from './replica-statements.ts';
import type { Availability } from './replica-statements.ts';

export interface Artifacts {
  /** Registers new images and starts uploads. Safe to repeat, and to run twice at once, as `collect` is. */
  sweep(): Promise<void>;
  /**
   * Registers snapshots that an event has missed, and removes artifacts that no row needs.
   * @param which `changed`: of snapshots that have changed lately. `all` reads every artifact: it also finds images that nothing
   *   needs any more, and what was missed while no server ran
   */
  collect(which: 'changed' | 'all'): Promise<void>;
  /** These snapshots are ready, of disks or the service's own. */
  registerSnapshots(ids: readonly string[]): Promise<void>;
  /**
   * These sandboxes were placed: their hosts fetch what they need. Inside the caller's transaction; pass the result to
   * `announce` after the commit.
   */
  placed(on: Queryable, sandboxIds: readonly string[]): Promise<AssignmentChange[]>;
  /**
   * Undefined when hosts of the region can have this image, which was built: one has it, or the store of the region. Otherwise it is
   * replicated into that store, so that a later request finds it.
   */
  awaitedImage(projectId: string, digest: string, region: string): Promise<Replicating | undefined>;
  /** The same of a snapshot, which the store of the region must have. */
  awaitedSnapshot(id: string, region: string): Promise<Replicating | undefined>;
  /** A host needs the artifact in the store of its region: it is uploaded and copied even if it would not be otherwise. */
  replicate(artifactId: string, region: string): Promise<void>;
  /**
   * Stores what a sandbox that does not run has on its host, as an artifact with this id, which is needed until it is released. Inside the
   * caller's transaction, as the next two; pass the result to `announce` after the commit.
   */
  storeSandbox(on: Queryable, sandbox: StoredSandbox): Promise<AssignmentChange[]>;
  /** A host fetches an artifact that is in the store. */
  fetch(on: Queryable, artifactId: string, runnerId: string): Promise<AssignmentChange[]>;
  /** These artifacts of sandboxes are not needed any more. */
  release(on: Queryable, artifactIds: readonly string[]): Promise<void>;
  announce(changes: readonly AssignmentChange[]): void;
}

export interface StoredSandbox {
  id: string;
  sandboxId: string;
  projectId: string;
  runnerId: string;
  /** Largest file that it may have, in MiB. */
  maxMib: number;
}

/** A request must wait. */
export interface Replicating {
  /** Why it is not in the region yet, where that is known. The end of a sentence. */
  trouble: string | null;
}

export interface ArtifactsOptions {
  database: Database;
  /** The store is one that outlives this machine: everything is uploaded. */
  storeAll: boolean;
  /** How long a replica stays that nothing uses, in milliseconds. */
  replicaIdleMs: number;
  onChanged: (changes: readonly AssignmentChange[]) => void;
  /** An artifact is to be copied into the store of a region. */
  onReplicate: () => void;
  log: Logger;
}

/** An image that no row names may be named again by a build in progress. */
const IMAGE_GRACE_MS = 3_600_000;
const BATCH = 200;

export function createArtifacts(options: ArtifactsOptions): Artifacts {
  const { database, storeAll, replicaIdleMs, onChanged, onReplicate, log } = options;
  const { pool } = database;
  const announce: Artifacts['announce'] = (changes) => {
    if (changes.length > 0) onChanged(changes);
  };

  async function startUploads(): Promise<void> {
    const hosts = (await queryOne(pool, sql.HOSTS))?.hosts ?? 0;
    // The only host has everything: a second copy on the same machine would only take space.
    announce(await queryAll(pool, sql.START_UPLOADS, [storeAll || hosts > 1, BATCH]));
  }

  async function removeUnneeded(): Promise<void> {
    await queryAll(pool, replicas.REMOVE_UNUSED, [replicaIdleMs, BATCH]);
    const ids = (await queryAll(pool, sql.UNNEEDED, [IMAGE_GRACE_MS, BATCH])).map(({ id }) => id);
    if (ids.length > 0) announce(await queryAll(pool, sql.REMOVE_LOCATIONS, [ids]));
    await queryAll(pool, sql.FORGET_LOCATIONS);
    if (ids.length === 0) return;
    await queryAll(pool, sql.FORGET_OWN_LOCATIONS, [ids]);
    await queryAll(pool, sql.REMOVE_ARTIFACTS, [ids]);
  }

  async function registerSnapshots(ids: readonly string[]): Promise<void> {
    await queryAll(pool, sql.REGISTER_SNAPSHOTS, [ids]);
    await startUploads();
  }

  async function replicate(artifactId: string, region: string): Promise<void> {
    await queryAll(pool, sql.WANT, [artifactId]);
    if ((await queryAll(pool, replicas.REPLICATE, [artifactId, region])).length > 0) onReplicate();
    await startUploads().catch((error: unknown) => log.warn({ err: error }, 'uploads were not started'));
  }

  async function awaited(
    found: Availability | undefined,
    region: string,
    isHeldEnough: boolean,
  ): Promise<Replicating | undefined> {
    // Unknown: the host reports what is wrong with it.
    if (found === undefined) return undefined;
    const { id, stored, held, stale, trouble } = found;
    if (stored || (held && isHeldEnough)) {
      if (stale) await queryAll(pool, replicas.USED, [id, region]);
      return undefined;
    }
    await replicate(id, region);
    return { trouble };
  }

  return {
    announce,
    registerSnapshots,
    async sweep() {
      announce(await queryAll(pool, sql.REGISTER_IMAGES));
      await startUploads();
    },
    async collect(which) {
      const isAll = which === 'all';
      await queryAll(pool, isAll ? sql.REGISTER_ALL_SNAPSHOTS : sql.REGISTER_CHANGED_SNAPSHOTS);
      await queryAll(pool, isAll ? sql.MARK_ALL : sql.MARK_CHANGED);
      await removeUnneeded();
    },
    placed: (on, sandboxIds) => queryAll(on, sql.PLACE, [sandboxIds]),
    async awaitedImage(projectId, digest, region) {
      const find = () => queryOne(pool, replicas.OF_IMAGE, [region, projectId, digest]);
      let image = await find();
      if (image === undefined) {
        // Its build has just ended.
        announce(await queryAll(pool, sql.REGISTER_IMAGES));
        image = await find();
      }
      return await awaited(image, region, true);
    },
    async awaitedSnapshot(id, region) {
      const find = () => queryOne(pool, replicas.OF_ARTIFACT, [region, id]);
      let found = await find();
      if (found === undefined) {
        // It has just been taken.
        await queryAll(pool, sql.REGISTER_SNAPSHOTS, [[id]]);
        found = await find();
      }
      return found === undefined ? { trouble: null } : await awaited(found, region, false);
    },
    replicate,
    storeSandbox: (on, { id, sandboxId, projectId, runnerId, maxMib }) =>
      queryAll(on, sql.STORE_SANDBOX, [id, sandboxId, projectId, runnerId, maxMib]),
    fetch: (on, artifactId, runnerId) => queryAll(on, sql.FETCH, [artifactId, runnerId]),
    async release(on, ids) {
      await queryAll(on, sql.RELEASE, [ids]);
    },
  };
}
