import { chown, open, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { DEADLINES_MS } from '../tuning.ts';
import type { DeviceState, Jail } from '../driver.ts';
import type { QmpClient } from './qmp.ts';

/** The device state of our machine is 0.1 MB. */
const STATE_MAX_BYTES = 64 * 1024 * 1024;
const NAME = 'state';

/**
 * The file that a VMM saves its device state to. The slower steps come before and after the pause of the guest.
 *
 * QEMU's `xen-save-devices-state` is the only command that saves the devices without the memory for any memory backend; it
 * does not depend on Xen. A migration with `x-ignore-shared` omits only memory that is mapped shared, and takes a thread
 * and some round trips more.
 */
export class StateFile implements DeviceState {
  readonly #qmp: Pick<QmpClient, 'execute'>;
  readonly #path: string;
  readonly #file: FileHandle;

  private constructor(qmp: Pick<QmpClient, 'execute'>, path: string, file: FileHandle) {
    this.#qmp = qmp;
    this.#path = path;
    this.#file = file;
  }

  /**
   * @param jail of the VMM. The VMM writes to a file in its jail, which is then copied: a VMM that continues to run must not
   *   have access to the saved state
   */
  static async prepare(qmp: Pick<QmpClient, 'execute'>, jail: Jail): Promise<StateFile> {
    const path = join(jail.root, NAME);
    await rm(path, { force: true });
    const file = await open(path, 'wx+', 0o600);
    await chown(path, jail.uid, jail.uid);
    return new StateFile(qmp, path, file);
  }

  async save(): Promise<void> {
    await this.#qmp.execute(
      'xen-save-devices-state',
      { filename: `/${NAME}`, live: false },
      { deadlineMs: DEADLINES_MS.saveState },
    );
  }

  async copyTo(target: string): Promise<number> {
    const { size } = await this.#file.stat();
    if (size === 0 || size > STATE_MAX_BYTES) throw new Error(`the device state has ${size} bytes`);
    const state = Buffer.alloc(size);
    const { bytesRead } = await this.#file.read(state, 0, size, 0);
    if (bytesRead !== size) throw new Error('the device state changed while it was read');
    const copy = await open(target, 'wx', 0o600);
    try {
      await copy.writeFile(state);
    } finally {
      await copy.close();
    }
    return size;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
    await rm(this.#path, { force: true });
  }
}
