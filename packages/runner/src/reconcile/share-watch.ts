import type { Logger } from 'pino';
import type { RunningVm } from '../machine/index.ts';
import { isAlive } from '../vmm/process-identity.ts';

const LOOK_EVERY_MS = 1_000;
/** Servers end with their VMM: it is ending itself if it ends that soon. */
const GRACE_MS = 500;

/**
 * Notices servers of volumes that have ended before their VM, and ends the VM. The guest's kernel waits for their answers for ever
 * and has no way to give a virtiofs up; a server cannot be replaced either, because it knows the guest's open files. What was
 * written is in the volume.
 */
export class ShareWatch {
  readonly #timer: NodeJS.Timeout | undefined;

  constructor({ vm, shares = [] }: RunningVm, log: Logger) {
    if (shares.length === 0) return;
    this.#timer = setInterval(() => {
      const ended = shares.find(({ process }) => process !== undefined && !isAlive(process));
      if (ended === undefined) return;
      this.close();
      setTimeout(() => {
        if (vm.exited || !isAlive(vm.identity)) return;
        log.error({ tag: ended.tag }, 'the server of a volume has ended; ending its sandbox');
        void vm.endGuest('the host no longer serves one of its volumes');
      }, GRACE_MS).unref();
    }, LOOK_EVERY_MS).unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }
}
