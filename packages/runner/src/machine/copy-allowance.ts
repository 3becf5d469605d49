import type { Logger } from 'pino';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { VmRecord } from './vm-folder.ts';

const AGAIN_MS = 5_000;
/** After so many tries the VM keeps the raised limit until it ends; each try was logged. */
const TRIES = 60;

/** Lets a VM have its memory once more while a copy-on-write clone of it exists. */
export class CopyAllowance {
  readonly #cgroups: CgroupTree;
  readonly #usualMib: (record: VmRecord) => number;
  readonly #log: Logger;
  /** Of the last word on each cgroup: an older one must not undo it. */
  readonly #turns = new Map<string, number>();

  /** @param usualMib what a VM may have without a clone */
  constructor(cgroups: CgroupTree, usualMib: (record: VmRecord) => number, log: Logger) {
    this.#cgroups = cgroups;
    this.#usualMib = usualMib;
    this.#log = log;
  }

  /**
   * @throws when more could not be allowed. What is taken back is tried again in the background: a kernel refuses a limit
   *   below what is in use
   */
  async set(record: VmRecord, allowed: boolean): Promise<void> {
    const { cgroup, shape } = record;
    const turn = (this.#turns.get(cgroup) ?? 0) + 1;
    this.#turns.set(cgroup, turn);
    const usual = this.#usualMib(record);
    if (allowed) return await this.#cgroups.setMemoryLimit(cgroup, usual + shape.memMib);
    await this.#takeBack(cgroup, usual, turn, 1);
  }

  async #takeBack(cgroup: string, mib: number, turn: number, tries: number): Promise<void> {
    if (this.#turns.get(cgroup) !== turn) return;
    try {
      await this.#cgroups.setMemoryLimit(cgroup, mib);
      this.#turns.delete(cgroup);
    } catch (error) {
      // Without its cgroup the VM has ended.
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' || tries >= TRIES) {
        this.#turns.delete(cgroup);
        return;
      }
      this.#log.warn({ err: error, cgroup, tries }, 'the memory limit of a VM could not be lowered yet');
      setTimeout(() => void this.#takeBack(cgroup, mib, turn, tries + 1), AGAIN_MS).unref();
    }
  }
}
