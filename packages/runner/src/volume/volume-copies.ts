import { mkdir, readdir } from 'node:fs/promises';
import type { VolumeAssignment } from '@releap/contract/runner';
import { KeyedSemaphore } from '../budget/keyed-semaphore.ts';
import { spaceOf } from '../disk/space-watch.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import { readRecord } from './copy-record.ts';
import { VolumeCopy, type VolumeCopyOptions } from './volume-copy.ts';
import { volumePaths } from './volume-paths.ts';

/** Interval at which copies are checked for work that is due. */
const LOOK_EVERY_MS = 1_000;
/** Copies that no sandbox uses are removed below this much free space, or this share of a small file system. */
const LOW_BYTES = 8 * 1024 ** 3;
const LOW_SHARE = 1 / 10;
const VOLUME_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export interface VolumeCopiesOptions extends Omit<VolumeCopyOptions, 'folder' | 'makeSpace' | 'onChange'> {
  /** `$RELEAP_HOME/runner/volumes`. */
  folder: string;
  /** Keeps copies that control does not name, or whose record cannot be read. */
  quarantine: Quarantine;
  /** Between background commits of a volume that sandboxes use. */
  commitEveryMs: number;
  /** Of the file system of the copies. */
  space?: () => Promise<{ freeBytes: number; totalBytes: number }>;
}

/**
 * The copies of volumes on this host. A sandbox opens a volume before its VM starts, and closes it after its VM has ended;
 * in between its changes are committed in the background, and those of other hosts are merged.
 */
export class VolumeCopies {
  readonly #options: VolumeCopiesOptions;
  readonly #copies = new Map<string, VolumeCopy>();
  /** Their folders must not be touched: they may have changes that no manifest has. */
  readonly #unusable = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  #onChange: (volumeId: string) => void = () => undefined;
  #evicting: Promise<void> = Promise.resolve();
  /**
   * By volume: what moves the folder of its copy, or begins to use it. Two objects of one copy would write its record and its
   * tree as if it were new.
   */
  readonly #placing = new KeyedSemaphore();

  constructor(options: VolumeCopiesOptions) {
    this.#options = options;
  }

  /** @param onChange called when what is reported of a copy may have changed */
  listen(onChange: (volumeId: string) => void): void {
    this.#onChange = onChange;
  }

  /** Takes over the copies of an earlier process, with the sandboxes that it had opened them for. */
  async recover(): Promise<void> {
    const { folder, log } = this.#options;
    await mkdir(folder, { recursive: true, mode: 0o700 });
    for (const volumeId of await readdir(folder)) {
      if (!VOLUME_ID.test(volumeId)) continue;
      await this.#load(volumeId).catch((error: unknown) => {
        this.#unusable.add(volumeId);
        log.error(
          { err: error, volume: volumeId },
          'the copy of a volume cannot be used: repair it, or move its folder away, and restart the runner',
        );
      });
    }
  }

  /** Starts the periodic work. @param isAlive whether a sandbox still runs: the others have ended without closing anything */
  start(isAlive: (sandboxId: string) => boolean): void {
    for (const copy of this.#copies.values())
      for (const sandboxId of copy.inherited) if (!isAlive(sandboxId)) void copy.close(sandboxId);
    this.#timer = setInterval(() => this.#look(), LOOK_EVERY_MS).unref();
  }

  /**
   * Mounts the newest content of a volume for a sandbox; repeatable.
   * @returns folder of the tree on this host
   * @throws with the reason when it cannot be mounted
   */
  async open(volumeId: string, sandboxId: string, signal: AbortSignal): Promise<{ data: string }> {
    const { opened } = await this.#placing.run(volumeId, async () => {
      // Control names it again when it wants a sandbox with it.
      await this.#restore(volumeId);
      // Not awaited: the copy is in use, or will be, before anything else may move it.
      return { opened: this.get(volumeId).open(sandboxId, signal) };
    });
    return await opened;
  }

  /** The sandbox no longer uses it: its changes are committed now, or later if that takes long. */
  async close(volumeId: string, sandboxId: string): Promise<void> {
    await this.#copies.get(volumeId)?.close(sandboxId);
  }

  /** The copy, which may not exist on the disk yet. */
  get(volumeId: string): VolumeCopy {
    if (!VOLUME_ID.test(volumeId)) throw new Error(`not the id of a volume: ${JSON.stringify(volumeId)}`);
    if (this.#unusable.has(volumeId))
      throw new Error(
        `the copy of the volume ${volumeId} on this host is damaged; the log of its runner says how`,
      );
    const known = this.#copies.get(volumeId);
    if (known !== undefined) return known;
    const copy = new VolumeCopy(volumeId, this.#copyOptions);
    this.#copies.set(volumeId, copy);
    return copy;
  }

  /** Copies that are on the disk. */
  get present(): VolumeCopy[] {
    return [...this.#copies.values()].filter(({ state }) => state.exists);
  }

  /** Control has assigned a newer head, or requests a commit. */
  want(volumeId: string, spec: VolumeAssignment['spec']): void {
    const copy = this.get(volumeId);
    copy.want(spec);
    void copy.work(this.#options.commitEveryMs);
  }

  /** Deletes a copy. @throws when a sandbox uses it */
  async remove(volumeId: string): Promise<void> {
    this.#unusable.delete(volumeId);
    await this.get(volumeId).remove();
    this.#copies.delete(volumeId);
  }

  /** Moves a copy into the quarantine. @returns false when a sandbox uses it or there is none */
  async park(volumeId: string): Promise<boolean> {
    return await this.#placing.run(volumeId, async () => {
      const copy = this.#copies.get(volumeId);
      if (copy !== undefined && !(await copy.release())) return false;
      this.#copies.delete(volumeId);
      return await this.#options.quarantine.park(volumeId);
    });
  }

  /** Takes a copy back from the quarantine, if one is there. */
  async restore(volumeId: string): Promise<boolean> {
    return await this.#placing.run(volumeId, () => this.#restore(volumeId));
  }

  async #restore(volumeId: string): Promise<boolean> {
    if (this.#copies.get(volumeId)?.state.exists === true) return false;
    if (!(await this.#options.quarantine.restore(volumeId))) return false;
    this.#copies.delete(volumeId);
    await this.#load(volumeId);
    return true;
  }

  /** Commits copies that no sandbox uses any more, until the signal aborts. */
  async drain(deadline: AbortSignal): Promise<void> {
    const ended = new Promise<void>((resolve) =>
      deadline.addEventListener('abort', () => resolve(), { once: true }),
    );
    await Promise.race([Promise.all([...this.#copies.values()].map((copy) => copy.finish())), ended]);
  }

  /** Ends all work. Mounts stay for the sandboxes that use them; a later process continues. */
  async detach(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all([...this.#copies.values()].map((copy) => copy.detach()));
  }

  /** Unmounts copies that no sandbox uses, committed or not. To be called after `detach`. */
  async unmount(): Promise<void> {
    for (const copy of this.#copies.values())
      await copy
        .release()
        .catch((error: unknown) =>
          this.#options.log.warn({ err: error, volume: copy.volumeId }, 'a copy stays mounted'),
        );
  }

  async #load(volumeId: string): Promise<void> {
    const { folder } = this.#options;
    const record = await readRecord(volumePaths(folder, volumeId).record);
    // Without a record nothing was ever mounted from it.
    const copy = new VolumeCopy(volumeId, this.#copyOptions, record);
    if (record === undefined) return await copy.remove();
    await copy.recover();
    this.#copies.set(volumeId, copy);
  }

  get #copyOptions(): VolumeCopyOptions {
    return {
      ...this.#options,
      makeSpace: (bytes) => this.#makeSpace(bytes),
      onChange: (volumeId) => this.#onChange(volumeId),
    };
  }

  #look(): void {
    for (const copy of this.#copies.values()) void copy.work(this.#options.commitEveryMs);
    void this.#makeSpace(0).catch((error: unknown) =>
      this.#options.log.warn({ err: error }, 'copies of volumes could not be removed'),
    );
  }

  /** Removes copies that can be fetched again, the least recently used first, until there is space for so many bytes. */
  #makeSpace(bytes: number): Promise<void> {
    const evicted = this.#evicting.then(async () => {
      const caches = this.present.filter(({ isCache }) => isCache);
      caches.sort((a, b) => (a.usedAt < b.usedAt ? -1 : 1));
      for (const copy of caches) {
        if (!(await this.#isShort(bytes))) return;
        if (!copy.isCache) continue;
        await copy.remove();
        this.#options.log.info({ volume: copy.volumeId }, 'a copy of a volume was removed to free space');
      }
    });
    this.#evicting = evicted.catch(() => undefined);
    return evicted;
  }

  async #isShort(bytes: number): Promise<boolean> {
    const { folder, space = () => spaceOf(folder) } = this.#options;
    const { freeBytes, totalBytes } = await space();
    return freeBytes - bytes < Math.min(LOW_BYTES, totalBytes * LOW_SHARE);
  }
}
