import { open, rename, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import type { Logger } from 'pino';
import { findGuestMemory, memorySource } from '../memory/guest-memory.ts';
import type { GuestMemory } from '../memory/guest-memory.ts';
import { copyMemoryFile, explainFullDisk } from '../memory/memory-file.ts';
import type { PageCopiers } from '../memory/page-copier.ts';
import { CowClone } from '../memory/cow-clone.ts';
import { failpoint } from '../failpoint.ts';
import type { Platform } from '../template/machine-size.ts';
import type { Hardware } from '../vmm/device-model.ts';
import { StateFile } from '../vmm/save-state.ts';
import { isOwnMemory } from './mapped-memory.ts';
import type { SuspendImage } from './suspend-image.ts';
import type { RunningVm } from './boot-options.ts';
import { settled } from './settled.ts';
import { vmmVersionOf } from './vm-folder.ts';
import type { VmRecord } from './vm-folder.ts';

/** The guest was neither paused nor resumed. */
export class GuestLostError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'GuestLostError';
  }
}

export interface PausingOptions {
  running: RunningVm;
  record: VmRecord;
  kept: SuspendImage;
  /** Of the VM. */
  folder: string;
  jail: { root: string; uid: number };
  hardware: Hardware;
  platform: Platform;
  copiers: PageCopiers;
  allowCopy: (allowed: boolean) => Promise<void>;
  log: Logger;
}

/**
 * One pause. What the guest has written is copied to the file while it runs (pre-copy), out of a copy-on-write clone of its VMM; when
 * it stops, only what it has written since is missing. So it is paused for as long as that takes, however much it
 * had written before.
 */
export class Pausing implements AsyncDisposable {
  readonly #options: PausingOptions;
  readonly #memory: GuestMemory;
  readonly #target: FileHandle;
  readonly #state: StateFile;
  /** The target, until it takes the place of what is kept; undefined when it is that already. */
  readonly #next: string | undefined;
  readonly #laps: Record<string, number> = {};
  readonly #began = performance.now();
  #copy: CowClone | undefined;

  private constructor(
    options: PausingOptions,
    memory: GuestMemory,
    target: FileHandle,
    state: StateFile,
    next: string | undefined,
  ) {
    this.#options = options;
    this.#memory = memory;
    this.#target = target;
    this.#state = state;
    this.#next = next;
  }

  /** @throws when there is no space; nothing is left then, and the guest was not affected */
  static async begin(options: PausingOptions): Promise<Pausing> {
    const { running, record, kept } = options;
    const { pid } = running.vm.identity;
    const memory = await findGuestMemory(pid, record.shape.memMib * 1024 * 1024);
    const next = (await isOwnMemory(pid, kept.memory, options.folder)) ? undefined : kept.next;
    try {
      if (next !== undefined) await copyMemoryFile(await memorySource(pid, record.memoryOrigin), next);
      // What was kept before is of no use any more.
      await kept.abandon();
      const state = await StateFile.prepare(running.vm, options.jail);
      const target = await open(next ?? kept.memory, 'r+').catch(async (error: unknown) => {
        await state[Symbol.asyncDispose]();
        throw error;
      });
      const pausing = new Pausing(options, memory, target, state, next);
      try {
        await pausing.#copyAhead();
        return pausing;
      } catch (error) {
        await pausing[Symbol.asyncDispose]();
        throw error;
      }
    } catch (error) {
      if (next !== undefined) await rm(next, { force: true });
      throw explainFullDisk(error, kept.memory);
    }
  }

  /**
   * Stops the guest, whose processes are frozen, and keeps what is missing. Afterwards its VMM is gone; after an error
   * the guest continues where it was.
   * @returns milliseconds since the pause began, at each step
   * @throws GuestLostError when the guest could not even be resumed
   */
  async finish(): Promise<Record<string, number>> {
    const { running, record, kept, hardware, platform, copiers, log } = this.#options;
    const { vm, diskBytes } = running;
    try {
      await vm.stop();
      this.#lap('stopped');
      failpoint('pause:stopped');
      const pages = this.#copy === undefined ? 'written' : 'unshared';
      // All of it has ended when one of them fails: what still copied would write to a file that is closed.
      const [stateBytes] = await settled([
        this.#state.save().then(() => this.#state.copyTo(kept.state)),
        copiers.urgent.copy(this.#memory, pages, this.#target.fd),
      ]);
      this.#lap('copied');
      failpoint('pause:saved');
      if (this.#next !== undefined) await rename(this.#next, kept.memory);
      failpoint('pause:renamed');
      const facts = {
        vmm: vmmVersionOf(record),
        accelerator: platform.accelerator,
        cpuModel: platform.cpuModel,
        hostCpu: platform.hostCpu,
        mac: platform.mac,
        shape: record.shape,
        diskBytes,
        stateBytes,
      };
      await kept.complete(facts, hardware);
      this.#lap('safe');
    } catch (error) {
      try {
        // What makes it paused comes last, so it is not.
        await vm.continue();
        await kept.abandon().catch((second: unknown) => log.warn({ err: second }));
      } catch (second) {
        throw new GuestLostError(
          `the sandbox could not be paused (${(error as Error).message}) and could not go on: ${(second as Error).message}`,
        );
      }
      throw explainFullDisk(error, kept.memory);
    }
    failpoint('pause:marked');
    // In good order, so that its disk need not be looked through when it is opened again.
    await vm.quit();
    this.#lap('ended');
    return this.#laps;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#copy?.[Symbol.asyncDispose]();
    await this.#state[Symbol.asyncDispose]();
    await this.#target.close();
    if (this.#next !== undefined) await rm(this.#next, { force: true });
    if (!this.#options.running.vm.exited) await this.#options.allowCopy(false).catch(() => undefined);
  }

  async #copyAhead(): Promise<void> {
    const { allowCopy, copiers, log } = this.#options;
    copiers.urgent.warm();
    await allowCopy(true);
    let twin: GuestMemory;
    try {
      this.#copy = await CowClone.prepare(this.#memory);
      twin = await this.#copy.take();
    } catch (error) {
      // Then all of it is copied while the guest is paused.
      log.warn({ err: error }, 'the memory of a VMM could not be copied in an instant');
      await this.#copy?.[Symbol.asyncDispose]();
      this.#copy = undefined;
      return;
    }
    await copiers.ahead.copy(twin, 'written', this.#target.fd);
    this.#lap('ahead');
  }

  #lap(name: string): void {
    this.#laps[name] = Math.round((performance.now() - this.#began) * 10) / 10;
  }
}
