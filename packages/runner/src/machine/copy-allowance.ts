import type { Logger } from 'pino';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { VmRecord } from './vm-folder.ts';

const RETRY_MS = 5_000;
/** After this many attempts the VM keeps the raised limit until it ends. Each attempt is logged. */
const ATTEMPTS = 60;

/** Raises the memory limit of a VM by its memory size while a copy-on-write clone of it exists. */
export class CopyAllowance {
  readonly #cgroups: CgroupTree;
  readonly #usualMib: (record: VmRecord) => number;
  readonly #log: Logger;
  /** Sequence number of the last change of each cgroup: a retry of an older one must not undo it. */
  readonly #turns = new Map<string, number>();

  /** @param usualMib limit of a VM without a clone */
  constructor(cgroups: CgroupTree, usualMib: (record: VmRecord) => number, log: Logger) {
    this.#cgroups = cgroups;
    this.#usualMib = usualMib;
    this.#log = log;
  }

  /**
   * @throws when the limit could not be raised. Lowering it is retried in the background, as the kernel refuses a limit below
   *   the current usage
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
      // The VM has ended if there is no cgroup.
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' || tries >= ATTEMPTS) {
        this.#turns.delete(cgroup);
        return;
      }
      this.#log.warn({ err: error, cgroup, tries }, 'the memory limit of a VM could not be lowered yet');
      setTimeout(() => void this.#takeBack(cgroup, mib, turn, tries + 1), RETRY_MS).unref();
    }
  }
}
