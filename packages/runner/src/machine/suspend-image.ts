import { randomUUID } from 'node:crypto';
import { renameSync } from 'node:fs';
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { GuestSize, Platform } from '../template/machine-size.ts';
import type { Vmm } from '../vmm/driver.ts';
import { cpuIdentity } from '../vmm/hardware.ts';
import type { Accelerator, Hardware, NamedCpu } from '../vmm/hardware.ts';
import { bootId } from '../vmm/process-identity.ts';
import { syncLarge, syncPath } from '../disk/sync-path.ts';
import { hardwareIn, heldSystemPath, holdSystemDisk } from './vm-folder.ts';

/** What a suspend image was saved with. It can be resumed with nothing else. */
export interface Suspension {
  /** Identifies this suspension. */
  id: string;
  /** Version of the VMM that saved it. */
  vmm: string;
  accelerator: Accelerator;
  /** Value of `-cpu`, and the host's CPU. */
  cpuModel: string;
  hostCpu: string;
  deviceModel: number;
  /** Absent for the processor of the host. */
  cpu?: NamedCpu;
  /** Digest of the system disk that the guest was booted with. The folder has a link to it. */
  system: string;
  mac: string;
  shape: GuestSize;
  diskBytes: { scratch: number; docker: number };
  stateBytes: number;
  /** Boot ID of the host at that time: until the image is durable, it is valid only during this boot. */
  bootId: string;
}

/** The `Suspension` of the image in a folder. It marks the image as complete. */
export const SUSPENSION_FILE = 'paused.json';
/** Has the id of the suspension whose files are all durable. */
export const DURABLE_FILE = 'durable';

/** The suspend image is gone or damaged, for the reason in the message: no host can resume it. */
export class NotResumableError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'NotResumableError';
  }
}

/** The suspend image is whole, but this host cannot resume it as it is now, for the reason in the message. It must be kept. */
export class MemoryBlockedError extends Error {
  constructor(message: string) {
    super(`${message}. Its memory is kept: it can be resumed once this has changed back; start discards it`);
    this.name = 'MemoryBlockedError';
  }
}

/**
 * Memory (`memory`) and device state (`state`) of one paused VM. `paused.json` marks the image as complete: it is created
 * last, by rename, and removed before the guest runs again. A VM is paused exactly if this file exists.
 */
export class SuspendImage {
  readonly memory: string;
  /** A new memory file, which replaces `memory` once it is complete. */
  readonly next: string;
  readonly state: string;
  readonly #marker: string;
  readonly #durable: string;
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
    this.memory = join(folder, 'memory');
    this.next = `${this.memory}.next`;
    this.state = join(folder, 'state');
    this.#marker = join(folder, SUSPENSION_FILE);
    this.#durable = join(folder, DURABLE_FILE);
  }

  /** Undefined when there is no image, or when a power loss of the host has truncated its marker. */
  async read(): Promise<Suspension | undefined> {
    try {
      return JSON.parse(await readFile(this.#marker, 'utf8')) as Suspension;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' || error instanceof SyntaxError)
        return undefined;
      throw error;
    }
  }

  /** Marks the image as complete: from here on the VM is paused. */
  async complete(
    { accelerator, driver, hostCpu, mac }: Platform,
    {
      hardware,
      ...facts
    }: Pick<Suspension, 'vmm' | 'shape' | 'diskBytes' | 'stateBytes'> & {
      hardware: Hardware;
    },
  ): Promise<void> {
    await holdSystemDisk(hardware, this.#folder);
    await this.#mark({
      ...facts,
      id: randomUUID(),
      bootId: bootId(),
      accelerator,
      mac,
      hostCpu: cpuIdentity(hostCpu, hardware),
      cpuModel: driver.cpuModel(accelerator, hardware),
      deviceModel: hardware.deviceModel,
      ...(hardware.cpu && { cpu: hardware.cpu }),
      system: hardware.system.sha256,
    });
  }

  /** The devices that it must be resumed with. */
  hardware(suspension: Suspension): Hardware {
    return hardwareIn(this.#folder, suspension);
  }

  async #mark(suspension: Suspension): Promise<void> {
    await writeFile(`${this.#marker}.next`, JSON.stringify(suspension), { mode: 0o600 });
    await rename(`${this.#marker}.next`, this.#marker);
  }

  /** Removes the marker before the guest runs: the image cannot be resumed again. @throws when there is none */
  async consume(): Promise<void> {
    await rename(this.#marker, `${this.#marker}.used`);
    await rm(`${this.#marker}.used`, { force: true });
  }

  /** Removes what a failed or finished capture has left. */
  async abandon(): Promise<void> {
    const system = heldSystemPath(this.#folder);
    for (const path of [this.#durable, this.#marker, `${this.#marker}.next`, this.state, system]) {
      await rm(path, { force: true });
    }
  }

  async remove(): Promise<void> {
    await this.abandon();
    await rm(this.memory, { force: true });
    await rm(this.next, { force: true });
  }

  /** Makes the image durable: from then on it survives a crash of the host. */
  async makeDurable(): Promise<void> {
    const suspension = await this.flush();
    if (suspension !== undefined) await this.markDurable(suspension);
  }

  /**
   * Flushes all files of the image to the disk.
   * @returns what was flushed; undefined when there is no complete image, or the signal was aborted
   */
  async flush(signal?: AbortSignal): Promise<Suspension | undefined> {
    const suspension = await this.read();
    if (suspension === undefined || !(await this.#isWhole(suspension))) return undefined;
    for (const path of [this.memory, this.state, this.#marker, this.#folder]) {
      if (signal?.aborted === true) return undefined;
      await syncLarge(path);
    }
    return suspension;
  }

  /**
   * Marks the image that `flush` has written as durable.
   * @param signal aborted before `unmarkDurable`: an image that is about to be resumed must not be marked any more
   */
  async markDurable({ id }: Suspension, signal?: AbortSignal): Promise<void> {
    // The marker has the id of the suspension, because there may be another one by now, or none.
    await writeFile(`${this.#durable}.next`, id, { mode: 0o600 });
    await syncPath(`${this.#durable}.next`);
    if (signal?.aborted === true) return;
    // Synchronous: no resume can begin between the check of the signal and the rename.
    renameSync(`${this.#durable}.next`, this.#durable);
    await syncPath(this.#folder);
  }

  /**
   * Removes the durable marker, so that after a crash of the host the image is not resumed a second time. To be done before
   * the guest runs; it waits for the disk. During this boot of the host the image stays valid.
   */
  async unmarkDurable(): Promise<void> {
    const suspension = await this.read();
    if (suspension !== undefined && suspension.bootId !== bootId()) {
      if (!(await this.#isWhole(suspension))) return;
      await this.#mark({ ...suspension, bootId: bootId() });
    }
    try {
      await rm(this.#durable);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    await syncPath(this.#folder);
  }

  /**
   * Checks that the image is whole and can be resumed on this host.
   * @returns the image's facts, and the VMM to resume it with
   * @throws NotResumableError when the image is gone or damaged; MemoryBlockedError when it is whole, and this host cannot
   *   resume it; any other error when it could not be read, which decides nothing about it
   */
  async check(platform: Platform): Promise<{ suspension: Suspension; vmm: Vmm }> {
    const { driver } = platform;
    const suspension = await this.read();
    if (suspension === undefined) throw new NotResumableError('it has no suspend image');
    await this.#checkFiles(suspension);
    if (!driver.isKnownDeviceModel(suspension.deviceModel)) {
      throw new MemoryBlockedError(
        `its memory belongs to device model ${suspension.deviceModel}, which this version of Releap does not know`,
      );
    }
    // Memory with the processor of the host can be resumed whichever one new machines have.
    const cpu = suspension.cpu && platform.hardware.cpu;
    const now = { deviceModel: suspension.deviceModel, cpu };
    const differing = (
      [
        ['accelerator', suspension.accelerator, platform.accelerator],
        ['CPU', suspension.hostCpu, cpuIdentity(platform.hostCpu, now)],
        ['CPU model', suspension.cpuModel, driver.cpuModel(platform.accelerator, now)],
        ['network address', suspension.mac, platform.mac],
      ] as const
    ).filter(([, then, here]) => then !== here);
    const vmm = driver.vmms.forState(suspension.vmm);
    if (vmm === undefined || differing.length > 0) {
      const list = differing.map(([what, then, here]) => `${what} ${then}, here ${here}`);
      if (vmm === undefined)
        list.unshift(`VMM ${suspension.vmm}, here ${driver.vmms.versions.join(' and ')}`);
      throw new MemoryBlockedError(
        `its memory was captured on another machine (${list.join('; ')}) and cannot be resumed here`,
      );
    }
    return { suspension, vmm };
  }

  /** @throws NotResumableError unless all files of the image are there and complete */
  async #checkFiles(suspension: Suspension): Promise<void> {
    if ((await sizeOf(heldSystemPath(this.#folder))) === undefined) {
      throw new NotResumableError(
        'the system disk that it was booted with is missing; it can be started from its disk',
      );
    }
    const [memory, state] = await Promise.all([sizeOf(this.memory), sizeOf(this.state)]);
    if (memory !== suspension.shape.memMib * 1024 * 1024 || state !== suspension.stateBytes) {
      throw new NotResumableError('its memory is not whole; it can be started from its disk');
    }
    if (!(await this.#isWhole(suspension))) {
      throw new NotResumableError(
        'its host was restarted before its memory had reached the disk; it can be started from its disk',
      );
    }
  }

  /** Whether the image is complete: it was saved during this boot of the host, or was durable before a crash. */
  async #isWhole({ id, bootId: madeIn }: Suspension): Promise<boolean> {
    return madeIn === bootId() || (await orIfMissing(readFile(this.#durable, 'utf8'), '')) === id;
  }
}

/** Size of a file in bytes; undefined when there is none. */
async function sizeOf(path: string): Promise<number | undefined> {
  return (await orIfMissing(stat(path), undefined))?.size;
}

/** A file that cannot be read for another reason is not missing. */
async function orIfMissing<T, E>(read: Promise<T>, missing: E): Promise<T | E> {
  try {
    return await read;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return missing;
    throw error;
  }
}
