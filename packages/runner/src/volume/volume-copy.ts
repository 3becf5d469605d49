import { mkdir, rm } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { RunnerVolume } from '@releap/contract';
import type { VolumeSpec } from '@releap/contract/runner';
import type { Logger } from 'pino';
import { Semaphore } from '../budget/semaphore.ts';
import { syncPath } from '../disk/sync-path.ts';
import { failpoint } from '../failpoint.ts';
import { ProcessError } from '../process/index.ts';
import type { CopyDisks } from './copy-disks.ts';
import { newRecord, saveRecord, type CopyRecord } from './copy-record.ts';
import { CopySync, type CommitReason } from './copy-sync.ts';
import { newestVolume } from './newest-volume.ts';
import { retryWhileUnavailable } from './retry-while-unavailable.ts';
import type { VolumeClient } from './volume-client.ts';
import { volumePaths, type VolumePaths } from './volume-paths.ts';
import type { Voltree } from './voltree.ts';

/** How long an opening retries while the control plane or the store cannot be reached. */
const OUTAGE_MS = 90_000;
/** Pauses after work has failed; they double. */
const RETRY_MS = { first: 500, most: 60_000 };
/** How long the end of a sandbox waits until its changes are committed. They are committed later, if that takes longer. */
const CLOSE_WAIT_MS = 15_000;

export interface VolumeCopyOptions {
  /** Folder of all copies. */
  folder: string;
  client: VolumeClient;
  voltree: Voltree;
  disks: CopyDisks;
  hostName: string;
  makeSpace: (bytes: number) => Promise<void>;
  /** Called when what is reported of the copy may have changed. */
  onChange: (volumeId: string) => void;
  /** Intervals; shorter in tests. */
  timing?: { closeWaitMs?: number; outageMs?: number };
  log: Logger;
}

/** The report of a copy to control. */
export interface CopyState {
  exists: boolean;
  number: number | undefined;
  dirtySince: string | undefined;
  /** The newest request for a commit that is fulfilled. */
  commit: number;
  error: string | undefined;
}

/**
 * The copy of one volume on this host. Its operations run one after the other; each may be interrupted anywhere, and an
 * operation of a later process continues from `copy.json`.
 */
export class VolumeCopy {
  readonly volumeId: string;
  readonly paths: VolumePaths;
  readonly #options: VolumeCopyOptions;
  readonly #sync: CopySync;
  readonly #turn = new Semaphore(1);
  /** Sandboxes that it is open for. */
  readonly #users: Set<string>;
  readonly #inherited: Set<string>;
  #record: CopyRecord | undefined;
  #saving: Promise<void> = Promise.resolve();
  /** The tree is mounted and complete: another sandbox may use it at once. */
  #isOpen = false;
  /** Aborts background work. */
  #background = new AbortController();
  #committedAt = Number.NEGATIVE_INFINITY;
  #commitMs = 0;
  #wanted: Pick<VolumeSpec, 'head' | 'commit'> = { head: null, commit: 0 };
  #fulfilled = 0;
  #error: string | undefined;
  /** After failures. */
  #retryAt = Number.NEGATIVE_INFINITY;
  #failures = 0;

  constructor(volumeId: string, options: VolumeCopyOptions, record?: CopyRecord) {
    this.volumeId = volumeId;
    this.#options = options;
    this.#record = record;
    this.#users = new Set(record?.sandboxes);
    this.#inherited = new Set(record?.sandboxes);
    this.paths = volumePaths(options.folder, volumeId);
    this.#sync = new CopySync(
      { ...options, volumeId, paths: this.paths },
      { record: () => this.#known, save: (change) => this.#save(change) },
    );
  }

  get state(): CopyState {
    return {
      exists: this.#record !== undefined,
      number: this.#record?.base?.number,
      dirtySince: this.#record?.dirty_since ?? undefined,
      commit: this.#fulfilled,
      error: this.#error,
    };
  }

  /** Sandboxes for which an earlier process has opened it. */
  get inherited(): string[] {
    return [...this.#inherited];
  }

  get isInUse(): boolean {
    return this.#users.size > 0;
  }

  /** It can be removed without losing anything. */
  get isCache(): boolean {
    return !this.isInUse && this.#turn.hasFree && this.#record?.dirty_since === null && !this.#isOpen;
  }

  /** When it was last opened or closed, RFC 3339. */
  get usedAt(): string {
    return this.#record?.used_at ?? '';
  }

  /**
   * Mounts the newest manifest for a sandbox, with whatever this host has not committed.
   * @throws when control or its store cannot be reached for long, the volume is deleted, or the host has no space
   */
  async open(sandboxId: string, signal: AbortSignal): Promise<{ data: string }> {
    if (this.#isOpen && this.isInUse) {
      await this.#addUser(sandboxId);
    } else {
      this.#background.abort(new Error('a sandbox opens the volume'));
      await this.#turn.run(() => this.#open(sandboxId, signal), signal);
    }
    return { data: this.paths.data };
  }

  /** A sandbox no longer uses it. The last one waits, for a while, until its changes are committed. */
  async close(sandboxId: string): Promise<void> {
    if (!this.#users.delete(sandboxId)) return;
    const closed = { sandboxes: [...this.#users], used_at: new Date().toISOString() };
    // A record that still names it costs a later process nothing.
    await this.#save(closed).catch((error: unknown) =>
      this.#options.log.warn(
        { err: error, volume: this.volumeId },
        'the record of a copy could not be written',
      ),
    );
    if (this.isInUse) return;
    const { timing } = this.#options;
    await Promise.race([
      this.finish(),
      sleep(timing?.closeWaitMs ?? CLOSE_WAIT_MS, undefined, { ref: false }),
    ]);
  }

  /** Takes over the copy from an earlier process. */
  async recover(): Promise<void> {
    const { disks, log } = this.#options;
    this.#isOpen = await disks.isMounted(this.paths);
    if (this.#isOpen && this.#known.dirty_since === null) {
      this.#isOpen = false;
      await disks
        .unmount(this.paths)
        .catch((error: unknown) => log.warn({ err: error, volume: this.volumeId }, 'a copy stays mounted'));
    }
    // Without the mount no sandbox can use it.
    if (!this.#isOpen && this.isInUse) {
      this.#users.clear();
      await this.#save({ sandboxes: [] });
    }
  }

  /** The newest assignment of control. */
  want(spec: Pick<VolumeSpec, 'head' | 'commit'>): void {
    this.#wanted = spec;
  }

  /** Does the work that is due. It reports failures and retries at the next call. @param everyMs between background commits */
  async work(everyMs: number): Promise<void> {
    const { head, commit } = this.#wanted;
    const isDirty = this.#record !== undefined && this.#record.dirty_since !== null;
    // Also while it is being opened: two hosts that open it would wait for each other.
    if (!isDirty) return this.#fulfil(commit);
    if (!this.#turn.hasFree || performance.now() < this.#retryAt) return;
    if (!this.isInUse) return await this.finish();
    const isBehind = head !== null && head.number > (this.#record?.base?.number ?? 0);
    // A scan of millions of files takes long: it must not take more than a tenth of the time.
    const isDue = performance.now() - this.#committedAt > Math.max(everyMs, 9 * this.#commitMs);
    if (isBehind) await this.#inBackground((signal) => this.#pull(signal));
    else if (commit > this.#fulfilled || isDue)
      await this.#inBackground((signal) =>
        this.#commit(commit > this.#fulfilled ? 'request' : 'background', signal),
      );
  }

  /** Commits and unmounts a copy that no sandbox uses any more. */
  async finish(): Promise<void> {
    await this.#inBackground(async (signal) => {
      if (this.isInUse || this.#record === undefined || (this.#record.dirty_since === null && !this.#isOpen))
        return;
      await this.#options.disks.mount(this.paths, this.#record.size_gb);
      await this.#commit('detach', signal);
      failpoint('volume:detaching');
      if (this.isInUse) return;
      this.#isOpen = false;
      await this.#options.disks.unmount(this.paths);
      await this.#save({ dirty_since: null });
      this.#changed();
    });
  }

  /** Aborts all work. Mounts stay for the sandboxes that use them. */
  async detach(): Promise<void> {
    this.#background.abort(new Error('the runner stops'));
    using _turn = await this.#turn.acquire();
  }

  /** Removes the copy with everything in it. @throws when a sandbox uses it */
  async remove(): Promise<void> {
    this.#background.abort(new Error('the volume is removed'));
    using _turn = await this.#turn.acquire();
    if (this.isInUse)
      throw new Error(`the volume ${this.volumeId} is in use by ${[...this.#users].join(', ')}`);
    await this.#discard();
  }

  /** Unmounts it as it is, so that its folder can be moved. @returns false while a sandbox uses it */
  async release(): Promise<boolean> {
    this.#background.abort(new Error('the volume is put aside'));
    using _turn = await this.#turn.acquire();
    if (this.isInUse) return false;
    this.#isOpen = false;
    await this.#options.disks.unmount(this.paths);
    return true;
  }

  async #open(sandboxId: string, signal: AbortSignal): Promise<void> {
    if (this.#isOpen && this.isInUse) return await this.#addUser(sandboxId);
    const { client, log } = this.#options;
    const volume = await this.#retryWhileUnavailable(signal, 'the volume', () =>
      newestVolume(this.volumeId, client, log, signal),
    );
    const { head } = volume;
    const half = this.#record?.checkout;
    if (half !== undefined && half !== null && half !== head?.root) await this.#discard();
    try {
      await this.#bring(volume, signal);
      await this.#addUser(sandboxId);
      this.#isOpen = true;
      failpoint('volume:opened');
    } catch (error) {
      if (this.#record?.dirty_since === null) await this.#options.disks.unmount(this.paths);
      throw error;
    }
    this.#committedAt = performance.now();
    this.#changed();
  }

  /** Mounts the copy and brings it to the head. */
  async #bring({ size_gb: sizeGb, head }: RunnerVolume, signal: AbortSignal): Promise<void> {
    const { disks, log } = this.#options;
    for (;;) {
      if (this.#record === undefined) {
        await mkdir(this.paths.folder, { recursive: true, mode: 0o700 });
        await syncPath(this.#options.folder);
        this.#record = newRecord(sizeGb);
        await this.#save({});
      }
      const isNew = this.#known.base === null;
      try {
        await disks.mount(this.paths, this.#known.size_gb);
        failpoint('volume:mounted');
        if (head !== null)
          await this.#retryWhileUnavailable(signal, 'the newest commit', () =>
            this.#sync.update(head, signal),
          );
        return;
      } catch (error) {
        const isDamaged = error instanceof ProcessError && error.failure === 'exit';
        if (signal.aborted || isNew || !isDamaged || this.#known.dirty_since !== null) throw error;
        log.warn(
          { err: error, volume: this.volumeId },
          'the copy of a volume cannot be used, and is fetched anew',
        );
        await this.#discard();
      }
    }
  }

  async #addUser(sandboxId: string): Promise<void> {
    this.#users.add(sandboxId);
    this.#inherited.delete(sandboxId);
    const now = new Date().toISOString();
    try {
      // Before it can write.
      const dirty_since = this.#known.dirty_since ?? now;
      await this.#save({ sandboxes: [...this.#users], used_at: now, dirty_since });
    } catch (error) {
      this.#users.delete(sandboxId);
      throw error;
    }
  }

  async #pull(signal: AbortSignal): Promise<void> {
    const { head } = this.#wanted;
    if (head !== null) await this.#sync.update(head, signal);
    await this.#commit('merge', signal);
  }

  async #commit(reason: CommitReason, signal: AbortSignal): Promise<void> {
    const { commit } = this.#wanted;
    const since = new Date().toISOString();
    const startedAt = performance.now();
    this.#committedAt = startedAt;
    try {
      await this.#sync.commit(reason, signal);
    } finally {
      this.#commitMs = performance.now() - startedAt;
    }
    // Changes during the scan belong to the next commit.
    await this.#save({ dirty_since: since });
    this.#fulfilled = Math.max(this.#fulfilled, commit);
    this.#changed();
  }

  #fulfil(commit: number): void {
    if (commit <= this.#fulfilled) return;
    this.#fulfilled = commit;
    this.#changed();
  }

  /** Runs background work: an opening interrupts it, and it is repeated. */
  async #inBackground(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    if (this.#background.signal.aborted) this.#background = new AbortController();
    const { signal } = this.#background;
    try {
      await this.#turn.run(() => work(signal), signal);
      this.#failures = 0;
      if (this.#error === undefined) return;
      this.#error = undefined;
      this.#options.log.info({ volume: this.volumeId }, 'a volume is committed again');
    } catch (error) {
      if (signal.aborted) return;
      this.#failures += 1;
      this.#retryAt = performance.now() + Math.min(RETRY_MS.first * 2 ** this.#failures, RETRY_MS.most);
      const message = error instanceof Error ? error.message : String(error);
      if (message === this.#error) return;
      this.#error = message;
      this.#options.log.warn({ err: error, volume: this.volumeId }, 'a volume could not be committed');
    }
    this.#changed();
  }

  async #retryWhileUnavailable<T>(signal: AbortSignal, what: string, work: () => Promise<T>): Promise<T> {
    return await retryWhileUnavailable(work, {
      what: `${what} of ${this.volumeId}`,
      forMs: this.#options.timing?.outageMs ?? OUTAGE_MS,
      signal,
    });
  }

  async #discard(): Promise<void> {
    this.#isOpen = false;
    await this.#options.disks.unmount(this.paths);
    await rm(this.paths.folder, { recursive: true, force: true });
    this.#record = undefined;
    this.#changed();
  }

  get #known(): CopyRecord {
    if (this.#record === undefined) throw new Error(`this host has no copy of the volume ${this.volumeId}`);
    return this.#record;
  }

  async #save(change: Partial<CopyRecord>): Promise<void> {
    this.#record = { ...this.#known, ...change };
    // One after the other, each with the newest of all.
    const saved = this.#saving.then(() => saveRecord(this.paths.record, this.#known));
    this.#saving = saved.catch(() => undefined);
    await saved;
  }

  #changed(): void {
    this.#options.onChange(this.volumeId);
  }
}
