import { existsSync } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { conflict } from '@releap/contract';
import type { Vm } from './driver.ts';

/**
 * In the folder of a VM that is stopped because it is idle: the next runner must not resume it as one that a capture has left
 * stopped. It is not fsynced, as a VM does not outlive its host.
 */
const MARK = 'idle';

/** Stops and resumes the virtual processors of a guest that serves nothing. Calls must not overlap. */
export class IdleStop {
  readonly #vm: Vm;
  /** Of the last thaw. */
  #turn: string | undefined;
  #isFrozen: boolean;

  /** @param isFrozen whether an earlier runner has stopped it, see `adoptFrozen` */
  constructor(vm: Vm, isFrozen: boolean) {
    this.#vm = vm;
    this.#isFrozen = isFrozen;
  }

  get isFrozen(): boolean {
    return this.#isFrozen;
  }

  /** @throws ApiError 409 after a thaw of another turn. A runner that has just started knows no turn. */
  async freeze(turn: string): Promise<void> {
    if (this.#turn !== undefined && this.#turn !== turn) throw conflict('the sandbox was thawed since');
    this.#turn = turn;
    if (!this.#isFrozen) await writeFile(join(this.#vm.dir, MARK), '', { mode: 0o600 });
    // Before the outcome is known: a thaw resumes it in any case.
    this.#isFrozen = true;
    await this.#vm.stop();
  }

  /** @param turn undefined: an operation of the runner needs the guest */
  async thaw(turn?: string): Promise<boolean> {
    this.#turn = turn ?? this.#turn;
    if (!this.#isFrozen) return false;
    await this.#vm.continue();
    this.#isFrozen = false;
    await rm(join(this.#vm.dir, MARK), { force: true });
    return true;
  }
}

/** Whether an earlier runner has stopped this VM because it was idle; then it stays stopped until it is thawed. */
export async function adoptFrozen(vm: Vm): Promise<boolean> {
  const mark = join(vm.dir, MARK);
  if (!existsSync(mark)) return false;
  if (!(await vm.isRunning())) {
    // Has no effect on the guest: this process knows from now on that it is stopped.
    await vm.stop();
    return true;
  }
  // The runner ended before it had stopped or after it had resumed the VM.
  await rm(mark, { force: true });
  return false;
}
