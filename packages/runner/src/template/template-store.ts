import { mkdir, open, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { Semaphore } from '../budget/semaphore.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { syncPath } from '../disk/sync-path.ts';
import { lockFile } from '../lock/file-lock.ts';
import { makeTemplate } from './make-template.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import { checkMachineSize, templateKey } from './machine-size.ts';
import type { Platform, MachineSize } from './machine-size.ts';

/** Templates kept on the disk; the least recently used goes first. One takes about 100 MB. */
const TEMPLATES_MAX = 16;
/** Templates whose memory is held ready. */
const LOADED_MAX = 4;
/** Cold boots at a time: each keeps a core busy for seconds, and a caller that needs another template waits no longer for it. */
const COLD_BOOTS = 1;
/** A guest that does not boot may have met a busy moment. */
const ATTEMPTS = 2;
/** A half-made template older than this is abandoned: making one has shorter deadlines. */
const ABANDONED_AFTER_MS = 15 * 60_000;

/** Cgroups whose names start so belong to templates in the making. At the start of a service there are none such. */
export const TEMPLATE_CGROUP = 'template-';

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
  /** What that memory was loaded from, to copy. */
  origin: MemoryOrigin;
  /**
   * Reads from position 0 only through descriptors of its own: open `statePath` again for each VM. It leads to the file
   * also when the template's folder was tidied away meanwhile, as the least recently loaded of all that share the cache.
   */
  statePath: string;
  state: FileHandle;
}

/** What the memory of a VM that is made from a template begins with. */
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
  readonly #loaded = new Map<string, Promise<LoadedTemplate>>();
  /** Never unloaded or removed, whatever sizes are asked for. */
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
   * a cold boot. Concurrent callers, in this process or another, wait for the same boot.
   */
  async ensure(shape: MachineSize): Promise<LoadedTemplate> {
    checkMachineSize(shape);
    const key = templateKey(this.platform, shape);
    const present = this.#loaded.get(key);
    if (present !== undefined) {
      // Most recently used last.
      this.#loaded.delete(key);
      this.#loaded.set(key, present);
      return await present;
    }
    const loading = this.#load(key, shape);
    this.#loaded.set(key, loading);
    loading.then(
      () => this.#unloadOldest(),
      () => {
        if (this.#loaded.get(key) === loading) this.#loaded.delete(key);
      },
    );
    return await loading;
  }

  /** Whether a restore needs no cold boot first. */
  async has(shape: MachineSize): Promise<boolean> {
    const key = templateKey(this.platform, shape);
    return this.#loaded.has(key) || (await this.#verify(key)) !== undefined;
  }

  /** For when a state does not load: the next `ensure` makes the template again. */
  async discard(key: string): Promise<void> {
    this.#log.warn({ template: key }, 'template discarded');
    const loaded = this.#loaded.get(key);
    this.#loaded.delete(key);
    const away = join(this.#folder, `.away-${key}-${process.pid}-${Date.now()}`);
    await rename(join(this.#folder, key), away).catch(() => undefined);
    await rm(away, { recursive: true, force: true });
    if (loaded !== undefined) disposeLater(loaded);
  }

  /** Cancels templates in the making, and releases all memory. */
  async close(): Promise<void> {
    this.#stop.abort();
    const all = [...this.#loaded.values()];
    this.#loaded.clear();
    for (const loaded of all) await dispose(loaded);
  }

  async #load(key: string, shape: MachineSize): Promise<LoadedTemplate> {
    if ((await this.#verify(key)) === undefined) await this.#make(key, shape);
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

  /** The manifest of a template that is whole, else undefined. Published by rename, it can only be whole or damaged. */
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
    await this.#coldBoots.run(() => this.#makeLocked(key, shape));
  }

  async #makeLocked(key: string, shape: MachineSize): Promise<void> {
    await using _lock = await lockFile(join(this.#folder, `.lock-${key}`), {
      wait: true,
      signal: this.#stop.signal,
    });
    // Another process may have made it meanwhile.
    if ((await this.#verify(key)) !== undefined) return;
    await this.#sweep();
    await rm(join(this.#folder, key), { recursive: true, force: true });
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.#makeOnce(key, shape);
        return;
      } catch (error) {
        const { message } = error as Error;
        if (attempt === ATTEMPTS || this.#stop.signal.aborted) {
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
    // Short, as the paths of unix sockets below it are limited.
    const making = join(this.#folder, `.m-${process.pid}-${Date.now().toString(36)}`);
    await mkdir(making, { mode: 0o700 });
    const cgroup = `${TEMPLATE_CGROUP}${key}`;
    try {
      const cgroupProcs = await this.#cgroups.create(cgroup, {
        cpu: 1,
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

  /** Removes what crashes have left, and the templates that are over the bound. */
  async #sweep(): Promise<void> {
    const kept: { path: string; mtimeMs: number }[] = [];
    for (const name of await readdir(this.#folder)) {
      const path = join(this.#folder, name);
      if (name.startsWith('.m-') || name.startsWith('.away-')) {
        const made = await stat(path).catch(() => undefined);
        if (made && Date.now() - made.mtimeMs > ABANDONED_AFTER_MS)
          await rm(path, { recursive: true, force: true });
      } else if (!name.startsWith('.') && name !== this.#pinned) {
        const used = await stat(join(path, 'template.json')).catch(() => undefined);
        kept.push({ path, mtimeMs: used?.mtimeMs ?? 0 });
      }
    }
    kept.sort((a, b) => b.mtimeMs - a.mtimeMs);
    for (const { path } of kept.slice(TEMPLATES_MAX - 1)) await rm(path, { recursive: true, force: true });
  }

  /** Running VMs have their own references to the memory; this releases only ours. */
  #unloadOldest(): void {
    while (this.#loaded.size > LOADED_MAX) {
      const [key, oldest] = [...this.#loaded].find(([loaded]) => loaded !== this.#pinned) as [
        string,
        Promise<LoadedTemplate>,
      ];
      this.#loaded.delete(key);
      this.#log.debug({ template: key }, 'template memory released');
      disposeLater(oldest);
    }
  }
}

const UNLOAD_GRACE_MS = 30_000;

/** A restore that has just taken it, or still waits for it, is given the time to start. */
function disposeLater(loaded: Promise<LoadedTemplate>): void {
  loaded.then(
    () => setTimeout(() => void dispose(loaded), UNLOAD_GRACE_MS).unref(),
    () => undefined,
  );
}

async function dispose(loaded: Promise<LoadedTemplate>): Promise<void> {
  const template = await loaded.catch(() => undefined);
  await template?.memory[Symbol.asyncDispose]();
  await template?.state.close();
}
