import { chown, open, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Vm } from './vm.ts';

const SAVE_DEADLINE_MS = 30_000;
/** The device state of our machine is 0.1 MB. */
const STATE_MAX_BYTES = 64 * 1024 * 1024;
const NAME = 'state';

/**
 * Where a VMM saves its device state. The guest must stand still for `save`, and can go on right after it, whatever came
 * of it; what takes longer is before and after that.
 *
 * QEMU's `xen-save-devices-state` is the one command that writes the devices and never the memory, whatever that
 * lies in; nothing of it is Xen's. A migration with `x-ignore-shared` leaves out only memory that is mapped shared,
 * and takes a thread and some round trips more.
 */
export class StateFile implements AsyncDisposable {
  readonly #vm: Vm;
  readonly #path: string;
  readonly #file: FileHandle;

  private constructor(vm: Vm, path: string, file: FileHandle) {
    this.#vm = vm;
    this.#path = path;
    this.#file = file;
  }

  /**
   * @param jail what the VMM is shut into: it writes to a file that we put there and that is copied out, for a VMM that
   *   goes on must not have a way to what is kept
   */
  static async prepare(vm: Vm, jail: { root: string; uid: number }): Promise<StateFile> {
    const path = join(jail.root, NAME);
    await rm(path, { force: true });
    const file = await open(path, 'wx+', 0o600);
    await chown(path, jail.uid, jail.uid);
    return new StateFile(vm, path, file);
  }

  async save(): Promise<void> {
    await this.#vm.qmp.execute(
      'xen-save-devices-state',
      { filename: `/${NAME}`, live: false },
      { deadlineMs: SAVE_DEADLINE_MS },
    );
  }

  /** Copies what was saved to `target`, a file that must not exist. @returns its bytes */
  async copyTo(target: string): Promise<number> {
    const { size } = await this.#file.stat();
    if (size === 0 || size > STATE_MAX_BYTES) throw new Error(`the device state has ${size} bytes`);
    const state = Buffer.alloc(size);
    const { bytesRead } = await this.#file.read(state, 0, size, 0);
    if (bytesRead !== size) throw new Error('the device state changed while it was read');
    const kept = await open(target, 'wx', 0o600);
    try {
      await kept.writeFile(state);
    } finally {
      await kept.close();
    }
    return size;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
    await rm(this.#path, { force: true });
  }
}

/** All of it, for a guest that is not waited for. @returns bytes written to `target` */
export async function saveState(
  vm: Vm,
  jail: { root: string; uid: number },
  target: string,
): Promise<number> {
  await using state = await StateFile.prepare(vm, jail);
  await state.save();
  return await state.copyTo(target);
}
