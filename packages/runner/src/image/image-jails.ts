/** What the processes of each pull have of their own: a user, a control group, and the only folder that they can write to. */
import { randomInt } from 'node:crypto';
import { cpus, totalmem } from 'node:os';
import { memoryOfAll, type TreeLimits } from '../cgroup/cgroup-files.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { makeJail } from './jail-folder.ts';
import { IMAGE_UIDS } from './unprivileged.ts';

/**
 * Of a pair of processes: the tree of an image with as many files as are allowed, what is being inflated, and some of the files that
 * they write, which the kernel caches. Content decides how much of it they need.
 */
const MEMORY_MAX_MIB = 3072;
/** Two times Node.js needs two dozen. */
const THREADS_MAX = 128;
/** Part of the machine's memory that all pulls together may have, but at least what one may. */
const MEMORY_SHARE = 1 / 8;
/** What they get of a busy machine: a sandbox may wait for its image, but those that run do not wait for pulls. */
const CORES = 1 / 2;
/** And of a busy disk, where that is shared by weight. */
const IO_WEIGHT = 50;

/** Of the control groups of all pulls together. */
export function imageLimits(machineMib = totalmem() / 2 ** 20): TreeLimits {
  const share = Math.max(MEMORY_MAX_MIB, Math.floor(machineMib * MEMORY_SHARE));
  return { cores: CORES, memoryMib: Math.min(share, memoryOfAll(machineMib)), ioWeight: IO_WEIGHT };
}

export interface ImageJail extends AsyncDisposable {
  folder: string;
  uid: number;
  /** Files that a process writes its pid to before anything else. */
  cgroups: readonly string[];
  threadsMax: number;
  memoryMib: number;
}

export class ImageJails {
  readonly #groups: Pick<CgroupTree, 'create' | 'destroy'> | undefined;
  readonly #memoryMib: number;
  readonly #uids = new Set<number>();

  /** @param groups where each pull gets a control group, of pulls alone; absent: they have none */
  constructor(groups?: Pick<CgroupTree, 'create' | 'destroy'>, memoryMib = MEMORY_MAX_MIB) {
    this.#groups = groups;
    this.#memoryMib = memoryMib;
  }

  /** @param work a folder of the caller's for these processes alone, which need not be accessible to them */
  async open(work: string): Promise<ImageJail> {
    const uid = this.#unusedUid();
    const group = `pull-${uid}`;
    const dispose = async (): Promise<void> => {
      // One that cannot be removed now is removed by the next runner.
      await this.#groups?.destroy(group).catch(() => undefined);
      this.#uids.delete(uid);
    };
    try {
      const folder = await makeJail(work, uid);
      const limits = { cpu: 1, cpuMax: cpus().length, memoryMib: this.#memoryMib, pids: THREADS_MAX };
      const cgroups = (await this.#groups?.create(group, limits)) ?? [];
      const bounds = { threadsMax: THREADS_MAX, memoryMib: this.#memoryMib };
      return { folder, uid, cgroups, ...bounds, [Symbol.asyncDispose]: dispose };
    } catch (error) {
      await dispose();
      throw error;
    }
  }

  /** By chance, as other services of the machine use the same range. */
  #unusedUid(): number {
    for (;;) {
      const uid = randomInt(IMAGE_UIDS.first, IMAGE_UIDS.last + 1);
      if (this.#uids.has(uid)) continue;
      this.#uids.add(uid);
      return uid;
    }
  }
}
