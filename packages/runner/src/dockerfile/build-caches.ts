/**
 * The layer caches of builds: one disk a project, in a raw sparse file that only micro-VMs of its builds mount. One build at
 * a time has it; another one of the same project waits.
 *
 *   <project>.disk   the cache of a project
 *   <project>.used   the same while a build has it. If the build does not end in order, files of layers that buildah takes
 *                    for whole may be missing on it: it is removed, after a crash by the next start.
 *   <project>.builds its finished builds, removed with it
 */
import { existsSync } from 'node:fs';
import { chown, mkdir, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { KeyedSemaphore } from '../budget/keyed-semaphore.ts';
import { Semaphore } from '../budget/semaphore.ts';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { run } from '../process/index.ts';
import { type FinishedBuild, FinishedBuilds } from './finished-builds.ts';

/** A cache that no build has used for so long is removed. */
const UNUSED_MS = 7 * 24 * 60 * 60_000;
const TIDY_EVERY_MS = 60 * 60_000;
/** A cache that fills more of its disk is not used again: its build would have too little of it. */
const FULL_SHARE = 0.6;
const COPY_DEADLINE_MS = 120_000;
const MIB = 2 ** 20;

export interface BuildCachesOptions {
  /** Absolute; on the file system of the VMs' folders. */
  folder: string;
  emptyDisks: EmptyExt4Store;
  /** Size of each disk. */
  diskMib: number;
  /** Most that all of them may take on the host. */
  maxMib: number;
  /** Those of these projects that have been deleted. */
  deletedProjects: (projects: readonly string[], signal: AbortSignal) => Promise<readonly string[]>;
  log: Logger;
}

/** A project's cache, held by one build. Disposing of it lets the next one have it, or an empty one. */
export interface CacheDisk extends AsyncDisposable {
  /** Absolute path of the raw file. */
  path: string;
  /** Gives it an empty file system, instead of one that is damaged. */
  recreate(): Promise<void>;
  /**
   * The micro-VM has ended in order: everything that it has written is on the disk.
   * @param finished the build, if the same one need not run again while the disk is kept
   */
  keep(finished?: FinishedBuild): void;
}

export class BuildCaches {
  readonly #options: BuildCachesOptions;
  /** By project: one user of its files at a time. */
  readonly #users = new KeyedSemaphore();
  readonly #tidying: NodeJS.Timeout;
  /** Two at once would each free the space that is needed. */
  readonly #tidies = new Semaphore(1);
  readonly #finished: FinishedBuilds;
  readonly #closed = new AbortController();

  constructor(options: BuildCachesOptions) {
    this.#options = options;
    this.#finished = new FinishedBuilds(options.folder);
    this.#tidying = setInterval(() => {
      this.#tidy();
      this.removeDeleted().catch((error: unknown) => {
        if (!this.#closed.signal.aborted)
          options.log.warn({ err: error }, 'deleted projects are not known yet');
      });
    }, TIDY_EVERY_MS).unref();
    this.#tidy();
  }

  close(): void {
    clearInterval(this.#tidying);
    this.#closed.abort();
  }

  /** A build of the project whose steps its cache has. The cache counts as used. */
  async finished(project: string, key: string): Promise<FinishedBuild | undefined> {
    const found = await this.#finished.find(project, key);
    // A build that has the cache marks it as used itself.
    if (found) await utimes(this.#file(project, 'disk'), new Date(), new Date()).catch(() => undefined);
    return found;
  }

  /** @param project its UUID @param signal aborted while it waits for another build of the project: it gives up */
  async open(project: string, signal: AbortSignal): Promise<CacheDisk> {
    const turn = await this.#users.acquire(project, signal);
    const [kept, path] = [this.#file(project, 'disk'), this.#file(project, 'used')];
    const create = async (): Promise<void> => {
      await this.#finished.remove(project);
      await this.#create(path);
    };
    try {
      if (await this.#isUsable(kept)) await rename(kept, path);
      else await create();
    } catch (error) {
      turn[Symbol.dispose]();
      throw error;
    }
    let isKept = false;
    let finished: FinishedBuild | undefined;
    const dispose = async (): Promise<void> => {
      try {
        if (isKept) {
          await release(path, kept);
          if (finished) await this.#finished.add(project, finished);
        } else {
          await this.#finished.remove(project);
          await Promise.all([path, kept].map((file) => rm(file, { force: true })));
        }
      } finally {
        turn[Symbol.dispose]();
        this.#tidy();
      }
    };
    const keep = (build?: FinishedBuild): void => {
      isKept = true;
      finished = build;
    };
    return { path, recreate: create, keep, [Symbol.asyncDispose]: dispose };
  }

  #file(project: string, kind: 'disk' | 'used'): string {
    return join(this.#options.folder, `${project}.${kind}`);
  }

  /**
   * Removes what a project has as its only user: a build that comes meanwhile waits.
   * @returns false, and removes nothing, if a build has its cache
   */
  async #whileUnused(project: string, remove: () => Promise<void>): Promise<boolean> {
    if (this.#users.has(project)) return false;
    using _turn = await this.#users.acquire(project);
    await remove();
    return true;
  }

  async #removeUnused(project: string): Promise<boolean> {
    return await this.#whileUnused(project, async () => {
      await this.#finished.remove(project);
      await rm(this.#file(project, 'disk'), { force: true });
    });
  }

  async #removeLeftovers(project: string): Promise<void> {
    await this.#whileUnused(project, async () => {
      await rm(this.#file(project, 'used'), { force: true });
      if (!existsSync(this.#file(project, 'disk'))) await this.#finished.remove(project);
    });
  }

  async #isUsable(path: string): Promise<boolean> {
    const bytes = this.#options.diskMib * MIB;
    const file = await stat(path).catch(() => undefined);
    return file?.size === bytes && file.blocks * 512 < bytes * FULL_SHARE;
  }

  async #create(path: string): Promise<void> {
    const { folder, emptyDisks, diskMib } = this.#options;
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await rm(path, { force: true });
    const empty = await emptyDisks.ensure(diskMib, 'journal');
    await run('cp', ['--sparse=always', '--reflink=auto', '--no-preserve=mode', '--', empty, path], {
      deadlineMs: COPY_DEADLINE_MS,
    });
  }

  #tidy(): void {
    this.tidy().catch((error: unknown) =>
      this.#options.log.warn({ err: error }, 'layer caches of builds are not removed'),
    );
  }

  /** Removes the caches of projects that have been deleted. */
  async removeDeleted(): Promise<void> {
    const { folder, deletedProjects, log } = this.#options;
    const names = await readdir(folder).catch((): string[] => []);
    const projects = names
      .filter((name) => name.endsWith('.disk'))
      .map((name) => name.slice(0, -'.disk'.length));
    if (projects.length === 0) return;
    const known = new Set(projects);
    for (const project of await deletedProjects(projects, this.#closed.signal)) {
      // A cache that a build has is removed an hour later.
      if (known.has(project) && (await this.#removeUnused(project)))
        log.info({ project }, 'removed the layer cache of a deleted project');
    }
  }

  /** Removes what a crash has left, what no build has used for long, and the least recently used where all take too much. */
  async tidy(now = Date.now()): Promise<void> {
    await this.#tidies.run(() => this.#tidyNow(now));
  }

  async #tidyNow(now: number): Promise<void> {
    const { folder, maxMib, log } = this.#options;
    const all = await readdir(folder).catch((): string[] => []);
    const isCache = (name: string): boolean => name.endsWith('.disk');
    const projects = all.filter((name) => !isCache(name)).map((name) => name.split('.')[0] ?? '');
    for (const project of new Set(projects)) await this.#removeLeftovers(project);
    const files = [];
    for (const name of all.filter(isCache)) {
      const file = await stat(join(folder, name)).catch(() => undefined);
      if (file)
        files.push({
          project: name.slice(0, -'.disk'.length),
          bytes: file.blocks * 512,
          at: file.mtimeMs,
        });
    }
    files.sort((a, b) => a.at - b.at);
    let held = files.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const { project, bytes, at } of files) {
      const isOld = now - at > UNUSED_MS;
      if ((!isOld && held <= maxMib * MIB) || !(await this.#removeUnused(project))) continue;
      held -= bytes;
      log.info({ project, mib: Math.round(bytes / MIB), unused: isOld }, 'removed a layer cache of builds');
    }
  }
}

/** Takes a disk back from the user of a VMM. */
async function release(path: string, kept: string): Promise<void> {
  await chown(path, 0, 0);
  await utimes(path, new Date(), new Date());
  await rename(path, kept);
}
