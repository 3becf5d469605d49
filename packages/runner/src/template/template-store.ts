import { mkdir, open, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { Semaphore } from '../budget/semaphore.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { syncPath } from '../disk/sync-path.ts';
import { lockFile } from '../lock/file-lock.ts';
import { makeTemplate, UselessBootError } from './make-template.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import { checkMachineSize, templateKey } from './machine-size.ts';
import type { Platform, MachineSize } from './machine-size.ts';

/** Most templates on the disk. The least recently used is evicted. One takes about 100 MB. */
const TEMPLATES_MAX = 16;
/** Most templates whose memory stays loaded. */
const LOADED_MAX = 4;
/** Concurrent cold boots: each keeps a core busy for seconds. */
const COLD_BOOTS = 1;
/** Share of a cold boot among the VMs of this host, in CPUs. */
const COLD_BOOT_CPUS = 8;
/** A guest may fail to boot in time because the host is busy. */
const ATTEMPTS = 2;
/** How often one is loaded, or made again. */
const LOADS = 3;
/** Boots whose kernel measures its timers wrongly: one of five with eight busy processes on two CPUs. */
const USELESS_BOOTS = 8;
/** A template in the making has a folder with this prefix and the start of its key: short, as sockets below it have short paths. */
const MAKING = '.m-';
const MAKING_KEY_CHARS = 12;
const LOCK = '.lock-';
/** Prefix of the cgroup of a template in the making. `Machines.reclaim` kills what is in one when a service starts. */
const TEMPLATE_CGROUP = 'template-';

interface Manifest {
  key: string;
  vcpus: number;
  memMib: number;
  stateBytes: number;
}

/** A template that VMs can be restored from, while it is held. */
export interface LoadedTemplate {
  key: string;
  shape: MachineSize;
  memory: SealedMemory;
  /** The file that the memory was loaded from. */
  origin: MemoryOrigin;
  /**
   * Reads from position 0 only through descriptors of its own: open `statePath` again for each VM. It leads to the file
   * also after the template was evicted, as the least recently used of all that share the cache.
   */
  statePath: string;
  state: FileHandle;
}

/** A template that is not released before it is disposed of. */
export type LeasedTemplate = LoadedTemplate & Disposable;

interface Entry {
  loaded: Promise<LoadedTemplate>;
  /** Starts that wait for it, or whose VMM does not have its memory yet. */
  users: number;
  isDisposed?: boolean;
}

/** The initial memory of a VM that is restored from a template. */
export function memoryOf({ memory, origin }: LoadedTemplate): { fd: number; origin: MemoryOrigin } {
  return { fd: memory.fd, origin };
}

/** The templates of one cache folder, which several services may share. */
export class TemplateStore {
  readonly platform: Platform;
  readonly #folder: string;
  readonly #jailUid: number;
  readonly #cgroups: CgroupTree;
  readonly #log: Logger;
  /** Least recently used first. */
  readonly #loaded = new Map<string, Entry>();
  /** Never unloaded or evicted. */
  readonly #pinned: string | undefined;
  readonly #coldBoots = new Semaphore(COLD_BOOTS);
  readonly #stop = new AbortController();

  /**
   * @param options.cacheDir absolute; templates lie in `templates/` below it
   * @param options.jailUid unprivileged user and group that template VMMs run as
   * @param options.pinned size whose template stays loaded, once it is
   */
  constructor(options: {
    cacheDir: string;
    platform: Platform;
    jailUid: number;
    cgroups: CgroupTree;
    pinned?: MachineSize | undefined;
    log: Logger;
  }) {
    this.platform = options.platform;
    this.#folder = join(options.cacheDir, 'templates');
    this.#jailUid = options.jailUid;
    this.#cgroups = options.cgroups;
    this.#pinned = options.pinned && templateKey(options.platform, options.pinned);
    this.#log = options.log;
  }

  /**
   * The template of a machine size: at once when it is loaded, in a tenth of a second when it is on the disk, else after
   * a cold boot. Concurrent callers, in this process or another, wait for the same boot. Its memory and state are not released
   * before it is disposed of, which a start does once its VMM has them.
   * @param signal ends the wait of this caller; the boot continues for others
   */
  async lease(shape: MachineSize, signal?: AbortSignal): Promise<LeasedTemplate> {
    const entry = this.#entryOf(shape);
    // Not later: a start that loads another template meanwhile must not evict this one.
    entry.users += 1;
    let isHeld = true;
    const release = (): void => {
      if (!isHeld) return;
      isHeld = false;
      entry.users -= 1;
      this.#unloadUnused(entry);
    };
    try {
      return { ...(await unlessAborted(entry.loaded, signal)), [Symbol.dispose]: release };
    } catch (error) {
      release();
      throw error;
    }
  }

  /** As `lease`, for later. */
  async ensure(shape: MachineSize, signal?: AbortSignal): Promise<void> {
    using _template = await this.lease(shape, signal);
  }

  #entryOf(shape: MachineSize): Entry {
    checkMachineSize(shape);
    const key = templateKey(this.platform, shape);
    const entry = this.#loaded.get(key) ?? { loaded: this.#load(key, shape), users: 0 };
    // Most recently used last.
    this.#loaded.delete(key);
    this.#loaded.set(key, entry);
    entry.loaded.catch(() => {
      if (this.#loaded.get(key) === entry) this.#loaded.delete(key);
    });
    return entry;
  }

  /** Whether a restore needs no cold boot first. */
  async has(shape: MachineSize): Promise<boolean> {
    const key = templateKey(this.platform, shape);
    return this.#loaded.has(key) || (await this.#verify(key)) !== undefined;
  }

  /** For when a state does not load: the next `ensure` makes the template again. */
  async discard(key: string): Promise<void> {
    this.#log.warn({ template: key }, 'template discarded');
    const entry = this.#loaded.get(key);
    this.#loaded.delete(key);
    await this.#removeFolder(key);
    if (entry !== undefined) this.#unloadUnused(entry);
  }

  /** At once for those that look for it: what is there is whole. */
  async #removeFolder(key: string): Promise<void> {
    const away = join(this.#folder, `.away-${key}-${process.pid}-${Date.now()}`);
    await rename(join(this.#folder, key), away).catch(() => undefined);
    await rm(away, { recursive: true, force: true });
  }

  /** Cancels cold boots: they take longer than a service has to stop. What waits for one fails. */
  stop(): void {
    this.#stop.abort(new Error('the service stops'));
  }

  get isStopped(): boolean {
    return this.#stop.signal.aborted;
  }

  /** Resolves when no cold boot runs and all memory is released. */
  async close(): Promise<void> {
    this.stop();
    const all = [...this.#loaded.values()];
    this.#loaded.clear();
    for (const entry of all) await dispose(entry);
  }

  async #load(key: string, shape: MachineSize): Promise<LoadedTemplate> {
    for (let attempt = 1; ; attempt++) {
      if ((await this.#verify(key)) === undefined) await this.#make(key, shape);
      try {
        return await this.#open(key, shape);
      } catch (error) {
        // It may have been evicted since, by this service or another that shares the cache.
        if (attempt === LOADS) throw error;
      }
    }
  }

  async #open(key: string, shape: MachineSize): Promise<LoadedTemplate> {
    const folder = join(this.#folder, key);
    const now = new Date();
    await utimes(join(folder, 'template.json'), now, now).catch(() => undefined);
    const memoryPath = join(folder, 'memory');
    const { ino } = await stat(memoryPath);
    const state = await open(join(folder, 'state'), 'r');
    try {
      const memory = await SealedMemory.load(memoryPath);
      const statePath = `/proc/self/fd/${state.fd}`;
      return { key, shape, memory, origin: { path: memoryPath, ino }, statePath, state };
    } catch (error) {
      await state.close();
      throw error;
    }
  }

  /** The manifest of a complete template, else undefined. Templates are published by rename. */
  async #verify(key: string): Promise<Manifest | undefined> {
    const folder = join(this.#folder, key);
    try {
      const manifest = JSON.parse(await readFile(join(folder, 'template.json'), 'utf8')) as Manifest;
      const [memory, state] = await Promise.all([stat(join(folder, 'memory')), stat(join(folder, 'state'))]);
      const whole =
        manifest.key === key &&
        memory.size === manifest.memMib * 1024 * 1024 &&
        state.size === manifest.stateBytes &&
        state.size > 0;
      return whole ? manifest : undefined;
    } catch {
      return undefined;
    }
  }

  async #make(key: string, shape: MachineSize): Promise<void> {
    await mkdir(this.#folder, { recursive: true, mode: 0o755 });
    await this.#coldBoots.run(() => this.#makeLocked(key, shape), this.#stop.signal);
  }

  async #makeLocked(key: string, shape: MachineSize): Promise<void> {
    await using _lock = await lockFile(join(this.#folder, `${LOCK}${key}`), {
      wait: true,
      signal: this.#stop.signal,
    });
    // Another process may have made it meanwhile.
    if ((await this.#verify(key)) !== undefined) return;
    await this.#evict();
    await rm(join(this.#folder, key), { recursive: true, force: true });
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.#makeOnce(key, shape);
        return;
      } catch (error) {
        const { message } = error as Error;
        const most = error instanceof UselessBootError ? USELESS_BOOTS : ATTEMPTS;
        if (attempt >= most || this.#stop.signal.aborted) {
          throw new Error(
            `no template for ${shape.vcpus} CPUs and ${shape.memMib} MiB could be made: ${message}`,
            {
              cause: error,
            },
          );
        }
        this.#log.warn({ ...shape, attempt, err: error }, 'a template could not be made; trying again');
      }
    }
  }

  async #makeOnce(key: string, shape: MachineSize): Promise<void> {
    const making = join(this.#folder, `${MAKING}${key.slice(0, MAKING_KEY_CHARS)}`);
    const cgroup = `${TEMPLATE_CGROUP}${key}`;
    // This process holds the lock: what is there is of one that was killed.
    await rm(making, { recursive: true, force: true });
    await mkdir(making, { mode: 0o700 });
    try {
      const cgroupProcs = await this.#cgroups.create(cgroup, {
        // A kernel that does not get a processor while it measures its timers measures them wrongly.
        cpu: COLD_BOOT_CPUS,
        cpuMax: shape.vcpus + 1,
        memoryMib: shape.memMib * 2 + 512,
        pids: 256,
      });
      await makeTemplate(this.platform, shape, making, {
        jailUid: this.#jailUid,
        cgroupProcs,
        log: this.#log,
        signal: this.#stop.signal,
      });
      const { size } = await stat(join(making, 'state'));
      const manifest: Manifest = { key, ...shape, stateBytes: size };
      await writeFile(join(making, 'template.json'), JSON.stringify(manifest));
      for (const name of ['memory', 'state', 'template.json']) await syncPath(join(making, name));
      await rename(making, join(this.#folder, key));
    } finally {
      await this.#cgroups.destroy(cgroup);
      await rm(making, { recursive: true, force: true });
    }
  }

  /** Removes what services have left that were killed while they made or removed a template. */
  async reclaim(): Promise<void> {
    const names = await readdir(this.#folder).catch(() => [] as string[]);
    for (const name of names) {
      const path = join(this.#folder, name);
      if (name.startsWith('.away-')) await rm(path, { recursive: true, force: true });
      if (!name.startsWith(MAKING)) continue;
      const lockName = names.find((one) => one.startsWith(`${LOCK}${name.slice(MAKING.length)}`));
      if (lockName !== undefined) await this.#removeUnlessLocked(path, lockName);
    }
  }

  /** The process that makes a template holds its lock, which the kernel releases with the process. */
  async #removeUnlessLocked(path: string, lockName: string): Promise<void> {
    await using lock = await lockFile(join(this.#folder, lockName), { wait: false });
    if (lock === undefined) return;
    await rm(path, { recursive: true, force: true });
    this.#log.info({ folder: path }, 'removed a template that was not finished');
  }

  /** Removes the least recently used templates, so that one more can be made. */
  async #evict(): Promise<void> {
    const templates: { name: string; mtimeMs: number }[] = [];
    for (const name of await readdir(this.#folder)) {
      if (name.startsWith('.') || name === this.#pinned) continue;
      const used = await stat(join(this.#folder, name, 'template.json')).catch(() => undefined);
      templates.push({ name, mtimeMs: used?.mtimeMs ?? 0 });
    }
    templates.sort((a, b) => b.mtimeMs - a.mtimeMs);
    for (const { name } of templates.slice(TEMPLATES_MAX - 1)) await this.#removeFolder(name);
  }

  /**
   * Releases the memory of the least recently used templates beyond the limit, and of this one if it was discarded, unless a start uses it.
   * Running VMs have references of their own.
   */
  #unloadUnused(released: Entry): void {
    const isListed = [...this.#loaded.values()].includes(released);
    if (!isListed && released.users === 0) void dispose(released);
    for (const [key, entry] of this.#loaded) {
      if (this.#loaded.size <= LOADED_MAX) return;
      if (key === this.#pinned || entry.users > 0) continue;
      this.#loaded.delete(key);
      this.#log.debug({ template: key }, 'template memory released');
      void dispose(entry);
    }
  }
}

async function dispose(entry: Entry): Promise<void> {
  if (entry.isDisposed === true) return;
  entry.isDisposed = true;
  const template = await entry.loaded.catch(() => undefined);
  await template?.memory[Symbol.asyncDispose]();
  await template?.state.close();
}

/** @throws the signal's reason, when it is aborted first */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return await work;
  const aborted = Promise.withResolvers<never>();
  const onAbort = (): void => aborted.reject(signal.reason as Error);
  signal.addEventListener('abort', onAbort, { once: true });
  if (signal.aborted) onAbort();
  try {
    return await Promise.race([work, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
    // It may end later, unheard.
    work.catch(() => undefined);
  }
}
