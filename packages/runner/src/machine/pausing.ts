import { open, rename, rm } from 'node:fs/promises';
import type { Logger } from 'pino';
import { findGuestMemory, memorySource } from '../memory/guest-memory.ts';
import { copyMemoryFile, explainFullDisk } from '../memory/memory-file.ts';
import { Precopy } from '../memory/precopy.ts';
import { failpoint } from '../failpoint.ts';
import type { Platform } from '../template/machine-size.ts';
import type { DeviceState, Jail } from '../vmm/driver.ts';
import type { Hardware } from '../vmm/hardware.ts';
import { tuning } from '../vmm/tuning.ts';
import { isOwnMemory } from './mapped-memory.ts';
import type { SuspendImage } from './suspend-image.ts';
import type { RunningVm } from './boot-options.ts';
import { allSettled } from './all-settled.ts';
import { Stopwatch } from './stopwatch.ts';
import { vmmVersionOf } from './vm-folder.ts';
import type { VmRecord } from './vm-folder.ts';

/** The guest could neither be paused nor be resumed. */
export class GuestLostError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'GuestLostError';
  }
}

export interface PausingOptions {
  running: RunningVm;
  record: VmRecord;
  image: SuspendImage;
  /** Of the VM. */
  folder: string;
  jail: Jail;
  hardware: Hardware;
  platform: Platform;
  log: Logger;
}

/**
 * One pause of a sandbox, in two phases. Pre-copy: while the guest runs, the pages that it has written are copied to the
 * suspend image. Stop-and-copy: the guest is stopped and the pages written since are copied, so that the downtime does not
 * depend on how much it had written before.
 */
export class Pausing implements AsyncDisposable {
  readonly #options: PausingOptions;
  readonly #copy: Precopy;
  readonly #state: DeviceState;
  /** Path of the new memory until it replaces that of the image; undefined when that is updated in place. */
  readonly #next: string | undefined;
  readonly #stopwatch: Stopwatch;
  readonly #resources: AsyncDisposableStack;

  private constructor(
    options: PausingOptions,
    parts: { copy: Precopy; state: DeviceState; next: string | undefined; stopwatch: Stopwatch },
    resources: AsyncDisposableStack,
  ) {
    this.#options = options;
    this.#copy = parts.copy;
    this.#state = parts.state;
    this.#next = parts.next;
    this.#stopwatch = parts.stopwatch;
    this.#resources = resources;
  }

  /** @throws when there is no space; nothing is left then, and the guest is not affected */
  static async begin(options: PausingOptions): Promise<Pausing> {
    const { running, record, image, platform, log } = options;
    const { pid } = running.vm.identity;
    const memory = await findGuestMemory(pid, record.shape.memMib * 1024 * 1024);
    const next = (await isOwnMemory(pid, image.memory, options.folder)) ? undefined : image.next;
    try {
      if (next !== undefined) await copyMemoryFile(await memorySource(pid, record.memoryOrigin), next);
      // An earlier suspend image is obsolete.
      await image.abandon();
      await using unfinished = new AsyncDisposableStack();
      const state = unfinished.use(await running.vm.prepareState(options.jail));
      const target = unfinished.use(await open(next ?? image.memory, 'r+'));
      const stopwatch = new Stopwatch(true);
      const copy = unfinished.use(
        await Precopy.begin(running.vm, memory, target.fd, {
          onUntraceable: (error) =>
            log.warn({ err: error }, 'no pre-copy of the memory of a VM that is paused'),
        }),
      );
      await copy.approach(tuning(platform.accelerator).precopy);
      stopwatch.mark('precopied');
      return new Pausing(options, { copy, state, next, stopwatch }, unfinished.move());
    } catch (error) {
      if (next !== undefined) await rm(next, { force: true });
      throw explainFullDisk(error, image.memory);
    }
  }

  /**
   * Stops the guest, whose processes are frozen, and completes the suspend image. Afterwards its VMM has ended; after an
   * error the guest continues.
   * @returns milliseconds from the start of the pause to the end of each step
   * @throws GuestLostError when the guest could not even be resumed
   */
  async finish(): Promise<Record<string, number>> {
    const { running, record, image, hardware, platform, log } = this.#options;
    const { vm, diskBytes } = running;
    try {
      await vm.stop();
      this.#stopwatch.mark('stopped');
      failpoint('pause:stopped');
      // Also waits for the other one after an error: a copy that still runs would write to a closed file.
      const [stateBytes] = await allSettled([
        this.#state.save().then(() => this.#state.copyTo(image.state)),
        this.#copy.take(),
      ]);
      this.#stopwatch.mark('copied');
      failpoint('pause:saved');
      if (this.#next !== undefined) await rename(this.#next, image.memory);
      failpoint('pause:renamed');
      const vmm = vmmVersionOf(record);
      await image.complete(platform, { vmm, shape: record.shape, diskBytes, stateBytes, hardware });
      this.#stopwatch.mark('safe');
    } catch (error) {
      try {
        // `complete` is the last step, so the sandbox is not paused.
        await vm.continue();
        await image.abandon().catch((second: unknown) => log.warn({ err: second }));
      } catch (second) {
        throw new GuestLostError(
          `the sandbox could not be paused (${(error as Error).message}) and could not be resumed: ${(second as Error).message}`,
        );
      }
      throw explainFullDisk(error, image.memory);
    }
    failpoint('pause:marked');
    // A clean end: otherwise the next open of its disk checks all metadata.
    await vm.quit();
    this.#stopwatch.mark('ended');
    return this.#stopwatch.steps;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#resources.disposeAsync();
    if (this.#next !== undefined) await rm(this.#next, { force: true });
  }
}
