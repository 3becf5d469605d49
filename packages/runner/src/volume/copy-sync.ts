/** Moves the content of one copy: from the tree to the store, and from the store into the tree. */
import { mkdir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import {
  VOLUME_COMMIT_CONFLICTS_MAX,
  type MergeConflict,
  type VolumeCommitRequest,
  type VolumeHead,
} from '@releap/contract';
import type { Logger } from 'pino';
import { Semaphore } from '../budget/semaphore.ts';
import { StoreError } from '../artifact/store-client.ts';
import { checkSpace } from '../disk/check-space.ts';
import { failpoint } from '../failpoint.ts';
import { ProcessError } from '../process/index.ts';
import type { CopyRecord } from './copy-record.ts';
import type { CommitOutcome, VolumeBlob, VolumeClient } from './volume-client.ts';
import type { VolumePaths } from './volume-paths.ts';
import type { MovePack, TreeCommit, Voltree } from './voltree.ts';

/** Of all copies of this host: they share the network with sandboxes. */
const transfers = new Semaphore(4);
/** Other hosts commit in between; each attempt merges what they have committed. */
const COMMIT_ATTEMPTS = 20;
const SPACE_LOOK_MS = 500;
/** Statuses of a repeated commit that was not stored, and never will be. */
const NOT_STORED: readonly number[] = [400, 404, 409];

export interface CopySyncOptions {
  volumeId: string;
  paths: VolumePaths;
  client: VolumeClient;
  voltree: Voltree;
  /** Part of the names of files that were in conflict: which host's version it is. */
  hostName: string;
  /** Frees space for that many bytes, if the host has too little. */
  makeSpace: (bytes: number) => Promise<void>;
  log: Logger;
}

/** A record that can be changed: saved durably before the promise resolves. */
export interface SavedRecord {
  record(): Readonly<CopyRecord>;
  save(change: Partial<CopyRecord>): Promise<void>;
}

export type CommitReason = VolumeCommitRequest['reason'];

/**
 * Nothing here runs twice at a time for one copy. Every method may be repeated after it was interrupted anywhere, and
 * continues then.
 */
export class CopySync {
  readonly #options: CopySyncOptions;
  readonly #copy: SavedRecord;
  /** How many files the last commit has skipped. */
  #skipped = 0;

  constructor(options: CopySyncOptions, copy: SavedRecord) {
    this.#options = options;
    this.#copy = copy;
  }

  /** Applies the head to the tree, and keeps local changes. */
  async update(head: VolumeHead, signal: AbortSignal): Promise<void> {
    const { base, dirty_since: dirty } = this.#copy.record();
    await this.#whileSpace(signal, (all) =>
      base === null && dirty === null ? this.#checkout(head, all) : this.#merge(head, all),
    );
  }

  /** Commits what has changed since the last commit, merging what other hosts have committed. */
  async commit(reason: CommitReason, signal: AbortSignal): Promise<void> {
    await this.#whileSpace(signal, (all) => this.#commit(reason, all));
  }

  async #commit(reason: CommitReason, signal: AbortSignal): Promise<void> {
    const { voltree, paths, volumeId, log } = this.#options;
    await this.#settlePending(signal);
    for (let attempt = 1, because = reason; attempt <= COMMIT_ATTEMPTS; attempt += 1, because = 'merge') {
      const startedAt = performance.now();
      await emptyFolder(paths.outgoing);
      const tree = await voltree.commit(paths, (pack, all) => this.#upload([pack], all), signal);
      failpoint('volume:packed');
      this.#noteSkipped(tree);
      await this.#noteConflicts(tree.conflicts ?? []);
      if (tree.root === 'same') return;
      await this.#upload([...tree.new, tree.root], signal);
      failpoint('volume:uploaded');
      const { base } = this.#copy.record();
      const request: VolumeCommitRequest = {
        parent: base?.number ?? 0,
        ...(base === null ? {} : { parent_root: base.root }),
        root: tree.root,
        blobs: tree.new,
        dropped: tree.dropped,
        packs: tree.packs,
        used_bytes: tree.used_bytes,
        files: tree.files,
        reason: because,
        conflicts: this.#copy.record().conflicts.slice(0, VOLUME_COMMIT_CONFLICTS_MAX),
      };
      await this.#copy.save({ pending: request });
      failpoint('volume:announced');
      const outcome = await this.#send(request, signal);
      if ('number' in outcome) {
        await this.#accept(request, outcome.number, signal);
        const ms = Math.round(performance.now() - startedAt);
        const facts = {
          volume: volumeId,
          manifest: outcome.number,
          changed: tree.changed,
          reason: because,
          ms,
        };
        log.info(facts, 'a volume was committed');
        return;
      }
      await this.#copy.save({ pending: null });
      await this.#merge(outcome.head, signal);
    }
    throw new Error(`other hosts have committed ${COMMIT_ATTEMPTS} times in between`);
  }

  async #checkout(head: VolumeHead, signal: AbortSignal): Promise<void> {
    const { voltree, paths, log, volumeId } = this.#options;
    const startedAt = performance.now();
    await this.#copy.save({ checkout: head.root });
    const manifest = await this.#fetchRoot(head, signal);
    await this.#reading(() => voltree.checkout(paths, manifest, this.#fetch, signal));
    failpoint('volume:checked-out');
    await this.#copy.save({ checkout: null, base: baseOf(head) });
    await rm(paths.incoming, { recursive: true, force: true });
    const ms = Math.round(performance.now() - startedAt);
    log.info({ volume: volumeId, manifest: head.number, ms }, 'a volume was checked out');
  }

  async #merge(head: VolumeHead, signal: AbortSignal): Promise<void> {
    const { voltree, paths, log, volumeId, hostName } = this.#options;
    if (this.#isBase(head)) return;
    await this.#settlePending(signal);
    if (this.#isBase(head)) return;
    const startedAt = performance.now();
    const manifest = await this.#fetchRoot(head, signal);
    const { applied, conflicts } = await this.#reading(() =>
      voltree.merge(paths, manifest, `${hostName}-${head.number}`, this.#fetch, signal),
    );
    failpoint('volume:merged');
    await this.#copy.save({ base: baseOf(head), conflicts: this.#withConflicts(conflicts) });
    await rm(paths.incoming, { recursive: true, force: true });
    const ms = Math.round(performance.now() - startedAt);
    const facts = { volume: volumeId, manifest: head.number, applied, conflicts: conflicts.length, ms };
    log.info(facts, 'a newer manifest of a volume was merged');
  }

  /** @throws when control knows less than this copy: applying that would undo what was committed */
  #isBase({ number, root }: VolumeHead): boolean {
    const { base } = this.#copy.record();
    if (base === null || base.number < number) return false;
    if (base.number === number && base.root === root) return true;
    throw new Error(
      `the newest manifest of the control plane is number ${number}, but this host has number ${base.number}: was an ` +
        `older database restored? The copy of this host is kept as it is`,
    );
  }

  /** Finds out whether a commit was stored whose answer was lost, or that an earlier process sent. */
  async #settlePending(signal: AbortSignal): Promise<void> {
    const { pending } = this.#copy.record();
    if (pending === null) return;
    const outcome = await this.#send(pending, signal).catch((error: unknown) => {
      // Its changes are still in the tree.
      if (error instanceof StoreError && NOT_STORED.includes(error.status)) return undefined;
      throw error;
    });
    if (outcome !== undefined && 'number' in outcome) await this.#accept(pending, outcome.number, signal);
    else await this.#copy.save({ pending: null });
  }

  async #send(request: VolumeCommitRequest, signal: AbortSignal): Promise<CommitOutcome> {
    const outcome = await this.#options.client.commit(this.#options.volumeId, request, signal);
    failpoint('volume:committed');
    return outcome;
  }

  async #accept(request: VolumeCommitRequest, number: number, signal: AbortSignal): Promise<void> {
    const { voltree, paths } = this.#options;
    await voltree.accept(paths, request.root.digest, signal);
    failpoint('volume:accepted');
    await this.#copy.save({
      base: { number, root: request.root.digest },
      pending: null,
      conflicts: this.#copy.record().conflicts.slice(request.conflicts.length),
    });
    await rm(paths.outgoing, { recursive: true, force: true });
  }

  /** Runs a command that reads downloaded blobs. If they are damaged, the next attempt downloads them again. */
  async #reading<T>(command: () => Promise<T>): Promise<T> {
    try {
      return await command();
    } catch (error) {
      if (error instanceof ProcessError && error.failure === 'exit')
        await rm(this.#options.paths.incoming, { recursive: true, force: true });
      throw error;
    }
  }

  /** Aborts work that fills the host's disk: sandboxes and the database need the space more. @throws DiskFullError */
  async #whileSpace(signal: AbortSignal, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const { paths, makeSpace } = this.#options;
    await makeSpace(0);
    await checkSpace(paths.folder);
    const short = new AbortController();
    const watch = setInterval(() => {
      checkSpace(paths.folder).catch((error: unknown) => short.abort(error));
    }, SPACE_LOOK_MS);
    try {
      await work(AbortSignal.any([signal, short.signal]));
    } catch (error) {
      if (!short.signal.aborted) throw error;
      for (const folder of [paths.incoming, paths.outgoing])
        await rm(folder, { recursive: true, force: true });
      throw short.signal.reason;
    } finally {
      clearInterval(watch);
    }
  }

  async #noteConflicts(conflicts: readonly MergeConflict[]): Promise<void> {
    const all = this.#withConflicts(conflicts);
    if (all.length > this.#copy.record().conflicts.length) await this.#copy.save({ conflicts: all });
  }

  /** voltree repeats conflicts until a commit is accepted, and until then they are in the record. */
  #withConflicts(found: readonly MergeConflict[]): MergeConflict[] {
    const { conflicts } = this.#copy.record();
    const key = ({ path, kept_as, kind }: MergeConflict): string => JSON.stringify([path, kept_as, kind]);
    const known = new Set(conflicts.map(key));
    return [...conflicts, ...found.filter((one) => !known.has(key(one)))];
  }

  #noteSkipped({ skipped, skipped_count: count }: TreeCommit): void {
    if (count === this.#skipped) return;
    this.#skipped = count;
    if (count === 0) return;
    const facts = { volume: this.#options.volumeId, count, first: skipped.slice(0, 5) };
    this.#options.log.warn(facts, 'files of a volume cannot be committed: they are on this host only');
  }

  async #upload(blobs: readonly VolumeBlob[], signal: AbortSignal): Promise<void> {
    const { client, volumeId, paths } = this.#options;
    const digests = blobs.map(({ digest }) => digest);
    const missing = await client.missing(volumeId, digests, signal);
    await eachAtOnce(
      blobs.filter(({ digest }) => missing.has(digest)),
      signal,
      async ({ digest }, all) => {
        await client.upload(volumeId, digest, blobFile(paths.outgoing, digest), all);
        failpoint('volume:pack-uploaded');
      },
    );
  }

  /** @returns the root's file */
  async #fetchRoot({ root, bytes }: VolumeHead, signal: AbortSignal): Promise<string> {
    const { paths } = this.#options;
    await mkdir(paths.incoming, { recursive: true, mode: 0o700 });
    await this.#fetch({ digest: root, bytes }, signal);
    failpoint('volume:fetched');
    return blobFile(paths.incoming, root);
  }

  /** Downloads a blob into `incoming`, unless it is there. */
  readonly #fetch: MovePack = async (blob, signal) => {
    const { client, paths, makeSpace } = this.#options;
    const file = blobFile(paths.incoming, blob.digest);
    if (await hasBytes(file, blob.bytes)) return;
    await transfers.run(async () => {
      await makeSpace(blob.bytes);
      await checkSpace(paths.folder, blob.bytes);
      await client.download(blob, file, signal);
    }, signal);
    failpoint('volume:pack-fetched');
  };
}

const baseOf = ({ number, root }: VolumeHead): { number: number; root: string } => ({ number, root });

/** Names of blobs in the folders of voltree. */
function blobFile(folder: string, digest: string): string {
  return join(folder, digest.replace('sha256:', ''));
}

async function hasBytes(file: string, bytes: number): Promise<boolean> {
  return (await stat(file).catch(() => undefined))?.size === bytes;
}

async function emptyFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await readdir(folder)) await rm(join(folder, name), { recursive: true, force: true });
}

/** Transfers them, a few at a time. The first that fails ends the others, which are awaited. */
async function eachAtOnce(
  blobs: readonly VolumeBlob[],
  signal: AbortSignal,
  transfer: (blob: VolumeBlob, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const failed = new AbortController();
  const all = AbortSignal.any([signal, failed.signal]);
  await Promise.allSettled(
    blobs.map(async (blob) => {
      try {
        await transfers.run(() => transfer(blob, all), all);
      } catch (error) {
        failed.abort(error);
        throw error;
      }
    }),
  );
  signal.throwIfAborted();
  if (failed.signal.aborted) throw failed.signal.reason;
}
