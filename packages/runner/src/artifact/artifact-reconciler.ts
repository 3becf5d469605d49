import { readdir, rm } from 'node:fs/promises';
import type { ArtifactPart } from '@releap/contract';
import type { ArtifactAssignment, ArtifactReport } from '@releap/contract/runner';
import type { Logger } from 'pino';
import { Semaphore } from '../budget/semaphore.ts';
import { failpoint } from '../failpoint.ts';
import { fileSha256InBackground } from '../disk/file-sha256.ts';
import type { ImageLease, ImageStore } from '../image/image-store.ts';
import type { KindHandler } from '../link/kind-handler.ts';
import type { SnapshotFolders } from '../machine/index.ts';
import type { SnapshotReconciler } from '../reconcile/snapshot-reconciler.ts';
import type { ArtifactFetcher } from './artifact-fetcher.ts';
import { snapshotParts } from './snapshot-parts.ts';
import type { LocalPart, StoreClient } from './store-client.ts';

export interface ArtifactReconcilerOptions {
  client: StoreClient;
  fetcher: ArtifactFetcher;
  images: ImageStore;
  snapshots: SnapshotFolders;
  /** Moves snapshots into the quarantine that control does not name. */
  snapshotReconciler: Pick<SnapshotReconciler, 'named' | 'isAssigned'>;
  /** Captures a sandbox that does not run as a snapshot with this id. @throws when it runs, or is not here */
  capture: (vmId: string, snapshotId: string) => Promise<void>;
  report: (report: ArtifactReport) => void;
  log: Logger;
}

interface Location {
  assignment: ArtifactAssignment;
  controller: AbortController;
  done: Promise<void>;
  /** Of the newest generation, once its work has ended. */
  report?: ArtifactReport;
  /** An image is not removed from the cache while it is assigned. */
  lease?: ImageLease;
}

/** They share the disk and the network with sandboxes. */
const UPLOADS_AT_ONCE = 2;
/** Name of a folder of links to what is being uploaded, beside the snapshot's. */
const STAGING = /^[0-9a-f-]{36}\.upload$/;

/** The artifacts that control assigns to this host: uploads, fetches and removes them. */
export class ArtifactReconciler implements KindHandler<'artifact'> {
  readonly kind = 'artifact';
  readonly #options: ArtifactReconcilerOptions;
  readonly #locations = new Map<string, Location>();
  readonly #uploads = new Semaphore(UPLOADS_AT_ONCE);

  constructor(options: ArtifactReconcilerOptions) {
    this.#options = options;
  }

  /** Removes what uploads of an earlier process have left. */
  async open(snapshotFolder: string): Promise<void> {
    for (const name of await readdir(snapshotFolder).catch(() => [])) {
      if (STAGING.test(name)) await rm(`${snapshotFolder}/${name}`, { recursive: true, force: true });
    }
  }

  assign(assignment: ArtifactAssignment): void {
    const { id, generation, desired, spec } = assignment;
    const known = this.#locations.get(id);
    if (known !== undefined && generation < known.assignment.generation) return;
    if (spec.type !== 'image' && desired !== 'deleted')
      this.#options.snapshotReconciler.named(spec.artifact_id);
    if (known?.assignment.generation === generation) {
      if (known.report !== undefined) this.#options.report(known.report);
      return;
    }
    known?.controller.abort(new Error('something else is wanted'));
    const controller = new AbortController();
    const location: Location = {
      assignment,
      controller,
      done: Promise.resolve(),
      ...(known?.lease && { lease: known.lease }),
    };
    this.#locations.set(id, location);
    location.done = this.#work(location, known?.done);
  }

  /** What is no longer assigned is left alone: a snapshot is moved into the quarantine, an image may leave the cache. */
  synced(named: ReadonlySet<string>): void {
    for (const [id, location] of this.#locations) {
      if (named.has(id)) continue;
      this.#locations.delete(id);
      location.controller.abort(new Error('it is no longer assigned'));
      location.lease?.release();
    }
  }

  async close(): Promise<void> {
    for (const { controller } of this.#locations.values()) controller.abort(new Error('the runner stops'));
    await Promise.all([...this.#locations.values()].map(({ done }) => done));
    await this.#options.fetcher.close();
  }

  async #work(location: Location, before: Promise<void> | undefined): Promise<void> {
    await before;
    const { assignment, controller } = location;
    const { signal } = controller;
    const { id, generation, desired, spec } = assignment;
    if (signal.aborted) return;
    const report = (rest: Pick<ArtifactReport, 'status' | 'detail'>): void => {
      location.report = { kind: 'artifact', id, generation, ...rest };
      this.#options.report(location.report);
    };
    try {
      if (desired === 'deleted') {
        await this.#remove(location);
        report({ status: 'deleted', detail: {} });
      } else if (desired === 'present') {
        await this.#ensure(location, signal);
        report({ status: 'present', detail: {} });
      } else {
        const parts = await this.#uploads.run(() => this.#upload(location, signal), signal);
        report({ status: 'stored', detail: { parts } });
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#options.log.warn({ err: error, location: id, artifact: spec.artifact_id }, 'an artifact failed');
      report({
        status: 'failed',
        detail: { error: error instanceof Error ? error.message : String(error) },
      });
    }
  }

  async #ensure(location: Location, signal: AbortSignal): Promise<void> {
    const { fetcher, images } = this.#options;
    const { spec } = location.assignment;
    if (spec.type !== 'image') return await fetcher.ensureSnapshot(spec.artifact_id, signal);
    const digest = digestOf(location.assignment);
    location.lease ??= images.lease(digest);
    await fetcher.ensureImage(digest, signal);
    // It may be nowhere else: also while this runner is down, another service on the same cache must not remove it.
    await images.pin(digest);
  }

  async #remove(location: Location): Promise<void> {
    const { images, snapshots, snapshotReconciler } = this.#options;
    const { id, spec } = location.assignment;
    location.lease?.release();
    delete location.lease;
    const others = [...this.#locations].filter(([other]) => other !== id);
    const isShared = others.some(([, { assignment }]) => assignment.spec.digest === spec.digest);
    if (spec.digest !== undefined && !isShared) await images.unpin(spec.digest);
    // The host that took a snapshot is told to remove it as a snapshot.
    if (spec.type !== 'image' && !snapshotReconciler.isAssigned(spec.artifact_id))
      await snapshots.remove(spec.artifact_id);
  }

  /** Once: an upload that is repeated uploads the same. */
  async #captureSandbox({ assignment: { spec } }: Location): Promise<void> {
    const { snapshots, capture } = this.#options;
    if (spec.vm_id === undefined) throw new Error('the assignment of a sandbox names no sandbox');
    if ((await snapshots.load(spec.artifact_id)) !== undefined) return;
    await capture(spec.vm_id, spec.artifact_id);
    failpoint('move:captured');
  }

  async #upload(location: Location, signal: AbortSignal): Promise<ArtifactPart[]> {
    const { client, images, snapshots, log } = this.#options;
    const { id, spec } = location.assignment;
    const startedAt = performance.now();
    const staging = `${snapshots.path(spec.artifact_id)}.upload`;
    try {
      if (spec.type === 'sandbox') await this.#captureSandbox(location);
      const parts =
        spec.type !== 'image'
          ? await snapshotParts(snapshots, spec.artifact_id, staging, signal)
          : await imageParts(images, digestOf(location.assignment), signal);
      failpoint('artifact:described');
      const missing = await client.missing(
        id,
        parts.map(({ digest }) => digest),
        signal,
      );
      for (const part of parts) {
        if (!missing.delete(part.digest)) continue;
        await client.upload({ location: id }, part, signal);
        failpoint('artifact:part-uploaded');
      }
      failpoint('artifact:uploaded');
      const ms = Math.round(performance.now() - startedAt);
      log.info({ artifact: spec.artifact_id, parts: parts.length, ms }, 'uploaded to the store');
      return parts.map(({ name, digest, bytes }) => ({ name, digest, bytes }));
    } finally {
      await rm(staging, { recursive: true, force: true });
    }
  }
}

async function imageParts(images: ImageStore, digest: string, signal: AbortSignal): Promise<LocalPart[]> {
  const files = await images.files(digest, signal);
  if (files === undefined) throw new Error(`the image ${digest} is not on this machine any more`);
  return await Promise.all(
    Object.entries({ 'root.squashfs': files.root, 'config.json': files.config }).map(
      async ([name, { path, bytes }]) => ({
        name,
        path,
        bytes,
        digest: `sha256:${await fileSha256InBackground(path, signal)}`,
      }),
    ),
  );
}

function digestOf({ spec }: ArtifactAssignment): string {
  if (spec.digest === undefined) throw new Error('the assignment of an image names no digest');
  return spec.digest;
}
