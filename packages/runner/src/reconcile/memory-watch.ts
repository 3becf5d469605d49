import type { Logger } from 'pino';
import type { RunningVm } from '../machine/index.ts';
import { writtenMemory } from '../memory/available-memory.ts';

const LOOK_EVERY_MS = 20_000;
/** In a row, above the limit: a VMM may need more for a moment. */
const LOOKS = 2;
const MIB = 2 ** 20;

export interface MemoryWatchOptions {
  running: Pick<RunningVm, 'vm' | 'shares'>;
  /** Most memory that the VMM and its guest may have written. Undefined: the size of the machine is the limit. */
  maxMib: number | undefined;
  log: Logger;
  everyMs?: number;
  /** Bytes that the VMM has written. */
  read?: typeof writtenMemory;
}

/**
 * Ends a VM whose guest uses memory that its sandbox did not ask for. The machine is larger than that, and its agent reserves the
 * rest, which root in the guest can undo. The limit of the control group ends a VMM that has more, too, but it includes page tables and
 * pages that may count twice (`Restoring.memoryMib`), and the kernel gives no reason.
 */
export class MemoryWatch {
  readonly #options: MemoryWatchOptions;
  readonly #timer: NodeJS.Timeout | undefined;
  #above = 0;

  constructor(options: MemoryWatchOptions) {
    this.#options = options;
    if (options.maxMib === undefined) return;
    this.#timer = setInterval(() => void this.#look(), options.everyMs ?? LOOK_EVERY_MS).unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #look(): Promise<void> {
    const { running, maxMib = Infinity, log, read = writtenMemory } = this.#options;
    const { vm, shares = [] } = running;
    // It has ended: what ended it is reported.
    const written = await read(vm.identity.pid, shares.length > 0).catch(() => 0);
    this.#above = written > maxMib * MIB ? this.#above + 1 : 0;
    if (this.#above < LOOKS) return;
    this.close();
    this.#above = 0;
    log.error(
      { written_mib: Math.floor(written / MIB), max_mib: maxMib },
      'a guest uses more memory than its sandbox asked for; ending it',
    );
    await vm.endGuest('it used more memory than it has asked for');
  }
}
