import { randomUUID } from 'node:crypto';
import { renameSync } from 'node:fs';
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { GuestSize, Platform } from '../template/machine-size.ts';
import { isKnownDeviceModel } from '../vmm/device-model.ts';
import type { Hardware } from '../vmm/device-model.ts';
import { bootId } from '../vmm/process-identity.ts';
import type { Vmm, VmmStore } from '../vmm/vmm-store.ts';
import { syncLarge, syncPath } from '../disk/sync-path.ts';
import { hardwareOf, heldSystemPath, holdSystemDisk } from './vm-folder.ts';

/** What a kept memory belongs to. It fits no other machine. */
export interface Suspension {
  /** Names this very suspension. */
  id: string;
  /** Version of the VMM that saved it. */
  vmm: string;
  accelerator: string;
  /** Value of `-cpu`, and what it stood for. */
  cpuModel: string;
  hostCpu: string;
  deviceModel: number;
  /** Digest of the system disk that the guest was booted with; it lies beside the memory. */
  system?: string;
  mac: string;
  shape: GuestSize;
  diskBytes: { scratch: number; docker: number };
  stateBytes: number;
  /** The host's run in which it was made: until it is on the platters, it is good for that one only. */
  bootId: string;
}

/** The memory that is kept cannot be gone on from; the message says why. */
export class NotResumableError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'NotResumableError';
  }
}

/**
 * Memory and device state of one paused VM: `memory` holds what the guest had in it, `state` its
 * devices, and `paused.json` says that both are whole. That file is the one fact about being paused: it appears after
 * them, by rename, and goes before the guest takes another step.
 */
export class SuspendImage {
  readonly memory: string;
  /** Takes the place of `memory` when it is whole. */
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
    this.#marker = join(folder, 'paused.json');
    this.#durable = join(folder, 'durable');
  }

  /** Undefined when no memory is kept, or when the host lost its power before what says so had reached the disk. */
  async read(): Promise<Suspension | undefined> {
    try {
      return JSON.parse(await readFile(this.#marker, 'utf8')) as Suspension;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT' || error instanceof SyntaxError)
        return undefined;
      throw error;
    }
  }

  /**
   * From here on the VM is paused.
   * @param hardware of the VM
   */
  async complete(
    facts: Omit<Suspension, 'id' | 'bootId' | 'deviceModel' | 'system'>,
    hardware: Hardware,
  ): Promise<void> {
    await holdSystemDisk(hardware, this.#folder);
    await this.#mark({
      ...facts,
      id: randomUUID(),
      bootId: bootId(),
      deviceModel: hardware.deviceModel,
      ...(hardware.system && { system: hardware.system.sha256 }),
    });
  }

  /** The devices that it must be resumed with. */
  hardware({ deviceModel, system }: Suspension): Hardware {
    return hardwareOf({ hardware: { deviceModel, ...(system !== undefined && { system }) } }, this.#folder);
  }

  async #mark(suspension: Suspension): Promise<void> {
    await writeFile(`${this.#marker}.next`, JSON.stringify(suspension), { mode: 0o600 });
    await rename(`${this.#marker}.next`, this.#marker);
  }

  /** From here on the memory is a running guest's, and good for nothing else. @throws when there is none */
  async consume(): Promise<void> {
    await rename(this.#marker, `${this.#marker}.used`);
    await rm(`${this.#marker}.used`, { force: true });
  }

  /** What a failed or finished capture has left. */
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

  /** Makes it durable: from then on it survives the end of the host too. */
  async settle(): Promise<void> {
    const suspension = await this.flush();
    if (suspension !== undefined) await this.markDurable(suspension);
  }

  /**
   * Writes all of it to the disk. It takes as long as there is to write.
   * @returns what was written; undefined when there is nothing, or it is not worth it any more
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
   * Says so, of what `flush` has written.
   * @param signal aborted before `unsettle`: what is about to be used must not be called durable any more
   */
  async markDurable({ id }: Suspension, signal?: AbortSignal): Promise<void> {
    // Names the suspension, for by now there may be another, or none.
    await writeFile(`${this.#durable}.next`, id, { mode: 0o600 });
    await syncPath(`${this.#durable}.next`);
    if (signal?.aborted === true) return;
    // At once: nobody can begin to use it between the question and this.
    renameSync(`${this.#durable}.next`, this.#durable);
    await syncPath(this.#folder);
  }

  /**
   * Makes sure that after a crash of the host nobody takes the memory for unused. Before the guest goes on, and not
   * on its way: it waits for the disk. Until then it is as good as before, to this run of the host.
   */
  async unsettle(): Promise<void> {
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
   * What it is, with the VMM to resume it with.
   * @throws NotResumableError unless this machine can resume it
   */
  async check(
    platform: Platform,
    vmms: Pick<VmmStore, 'forState' | 'versions'>,
  ): Promise<{ suspension: Suspension; vmm: Vmm }> {
    const kept = await this.read();
    if (kept === undefined) throw new NotResumableError('no memory of it is kept');
    const differing = (
      [
        ['accelerator', kept.accelerator, platform.accelerator],
        ['CPU', kept.hostCpu, platform.hostCpu],
        ['CPU model', kept.cpuModel, platform.cpuModel],
        ['network address', kept.mac, platform.mac],
      ] as const
    ).filter(([, then, now]) => then !== now);
    const vmm = vmms.forState(kept.vmm);
    if (vmm === undefined || differing.length > 0) {
      const list = differing.map(([what, then, now]) => `${what} ${then}, here ${now}`);
      if (vmm === undefined) list.unshift(`VMM ${kept.vmm}, here ${vmms.versions.join(' and ')}`);
      throw new NotResumableError(
        `its memory was captured on another machine (${list.join('; ')}) and cannot be resumed here; it can be started from its disk`,
      );
    }
    if (!isKnownDeviceModel(kept.deviceModel)) {
      throw new NotResumableError(
        `its memory belongs to device model ${kept.deviceModel}, which this version of Releap does not know; ` +
          'it can be started from its disk',
      );
    }
    if (kept.system !== undefined && !(await isFile(heldSystemPath(this.#folder)))) {
      throw new NotResumableError(
        'the system disk that it was booted with is missing; it can be started from its disk',
      );
    }
    const [memory, state] = await Promise.all([
      stat(this.memory).catch(() => undefined),
      stat(this.state).catch(() => undefined),
    ]);
    if (memory?.size !== kept.shape.memMib * 1024 * 1024 || state?.size !== kept.stateBytes) {
      throw new NotResumableError('its memory is not whole; it can be started from its disk');
    }
    if (!(await this.#isWhole(kept))) {
      throw new NotResumableError(
        'its host was restarted before its memory had reached the disk; it can be started from its disk',
      );
    }
    return { suspension: kept, vmm };
  }

  /** Whether it survived what the host has been through since. */
  async #isWhole({ id, bootId: madeIn }: Suspension): Promise<boolean> {
    return madeIn === bootId() || (await readFile(this.#durable, 'utf8').catch(() => '')) === id;
  }
}

async function isFile(path: string): Promise<boolean> {
  return await stat(path).then(
    (file) => file.isFile(),
    () => false,
  );
}
