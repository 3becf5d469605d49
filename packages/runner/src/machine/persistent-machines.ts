import { link, mkdir, open, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { exists, keptDiskMib, keptDiskPaths, openKeptDisk } from '../disk/kept-disk.ts';
import { DiskFullError, makeDisks } from '../disk/vm-disks.ts';
import type { DiskOptions, VmDisks } from '../disk/vm-disks.ts';
import { CommandError, run } from '../network/command.ts';
import { racePoint } from '../race-point.ts';
import { MEMORY_SCRIPT } from '../template/make-template.ts';
import type { TemplateStore } from '../template/template-store.ts';
import { bootId } from '../vmm/process-identity.ts';
import { saveState } from '../vmm/save-state.ts';
import type { Vm } from '../vmm/vm.ts';
import { KeptMemory, NotResumableError } from './kept-memory.ts';
import type { BootOptions, RestoreSource, RunningVm } from './machines.ts';
import type { VmFolders, VmRecord } from './vm-folder.ts';

const COPY_DEADLINE_MS = 120_000;

/** What is left of a persistent sandbox on this machine, VMM apart. */
export interface Remains {
  disk: boolean;
  /** It is paused: memory and device state are kept, unused. */
  memory: boolean;
  /** Its VMM went on from kept memory. */
  resumed: boolean;
  /** Its VMM ran before the host was last started. */
  hostRestarted: boolean;
}

type Restore = (
  options: Omit<BootOptions, 'disks'>,
  prepare: (jail: string, owner: { uid: number; gid: number }) => Promise<RestoreSource<VmDisks>>,
  purpose?: VmRecord['purpose'],
) => Promise<RunningVm>;

export interface PersistentMachinesOptions {
  folders: VmFolders;
  templates: TemplateStore;
  emptyDisks: EmptyExt4Store;
  /** Restores a VM; its guest stands still afterwards. */
  restore: Restore;
  showSizes: (vm: Vm, bytes: { scratch: number; docker: number }) => Promise<void>;
  log: Logger;
}

/**
 * VMs whose disk outlives them, and whose memory is a file of their own: what the guest writes is in the file the
 * moment it is written, so that pausing costs the device state and nothing else.
 */
export class PersistentMachines {
  readonly #options: PersistentMachinesOptions;

  constructor(options: PersistentMachinesOptions) {
    this.#options = options;
  }

  /** Like `Machines.boot`, on the disk that is kept or a new one. Memory that was kept must be gone. */
  async boot(options: BootOptions): Promise<RunningVm> {
    const { folders, templates, emptyDisks, restore, showSizes } = this.#options;
    const { vmId, shape, disks, signal } = options;
    const template = await templates.ensure(shape);
    signal?.throwIfAborted();
    const keep = folders.keep(vmId);
    await mkdir(keep, { recursive: true, mode: 0o700 });
    const kept = new KeptMemory(keep);
    if ((await kept.read()) !== undefined) throw new Error(`the memory of VM ${vmId} is still kept`);
    let memory: FileHandle | undefined;
    try {
      const running = await restore(options, async (jail, owner) => {
        const [disk] = await Promise.all([
          openKeptDisk(emptyDisks, keep, keptDiskMib(disks.scratchMib)),
          holdImage(disks.rootImagePath, keep),
          ownMemory(template.memoryPath, kept.memory),
        ]);
        memory = await open(kept.memory, 'r+');
        const all = { ...disks, scratchMib: keptDiskMib(disks.scratchMib), kept: disk };
        return {
          disks: await makeDisks(emptyDisks, jail, owner, all),
          memory: { fd: memory.fd, sharing: 'shared' },
          statePath: template.statePath,
          discard: () => templates.discard(template.key),
        };
      });
      return await finish(running, async () => {
        signal?.throwIfAborted();
        await showSizes(running.vm, running.diskBytes);
        await running.vm.continue();
      });
    } finally {
      await memory?.close();
    }
  }

  /**
   * Goes on from kept memory: the guest runs again, its processes frozen as they were.
   * @param options.rootImagePath the very image it ran on; not needed when that is held (`heldImage`)
   * @throws NotResumableError when the memory fits no VM here. Until the guest goes on, a failure costs the memory
   *   nothing; `remains` tells.
   */
  async resume(
    options: Omit<BootOptions, 'shape' | 'disks'> & {
      rootImagePath: string;
      purpose?: 'resumed' | 'flushing';
    },
  ): Promise<RunningVm> {
    const { folders, templates, emptyDisks, restore } = this.#options;
    const { vmId, signal, rootImagePath, purpose = 'resumed' } = options;
    const keep = folders.keep(vmId);
    const kept = new KeptMemory(keep);
    const suspension = await kept.check(templates.platform);
    const { shape, diskBytes } = suspension;
    let memory: FileHandle | undefined;
    try {
      const prepare = async (jail: string, owner: { uid: number; gid: number }) => {
        const scratchMib = diskBytes.scratch / 1024 / 1024;
        const disk = await openKeptDisk(emptyDisks, keep, scratchMib);
        memory = await open(kept.memory, 'r+');
        const disks: DiskOptions = { rootImagePath, scratchMib, kept: disk };
        return {
          disks: await makeDisks(emptyDisks, jail, owner, disks),
          memory: { fd: memory.fd, sharing: 'shared' as const },
          statePath: kept.state,
        };
      };
      const unsettled = kept.unsettle();
      unsettled.catch(() => undefined);
      const running = await restore({ ...options, shape }, prepare, purpose);
      return await finish(running, async () => {
        racePoint('resume:loaded');
        await unsettled;
        signal?.throwIfAborted();
        await kept.consume();
        racePoint('resume:consumed');
        await running.vm.continue();
        racePoint('resume:continued');
      });
    } finally {
      await memory?.close();
    }
  }

  /**
   * Stops a guest whose processes are frozen and keeps its memory and device state. Afterwards its VMM is gone; after
   * an error the guest goes on where it was.
   * @throws GuestLostError when the guest could not even be let go on
   */
  async suspend(vmId: string, { vm, diskBytes }: RunningVm): Promise<Record<string, number>> {
    const { folders, templates } = this.#options;
    const { platform } = templates;
    const kept = new KeptMemory(folders.keep(vmId));
    const record = await folders.load(vmId);
    if (record === undefined) throw new Error(`there is no VM ${vmId}`);
    const began = performance.now();
    const laps: Record<string, number> = {};
    const lap = (name: string): void => {
      laps[name] = Math.round((performance.now() - began) * 10) / 10;
    };
    try {
      await vm.stop();
      lap('stopped');
      racePoint('pause:stopped');
      await kept.abandon();
      const stateBytes = await saveState(vm, { root: folders.jail(vmId), uid: record.uid }, kept.state);
      lap('state');
      racePoint('pause:saved');
      await kept.complete({
        vmm: platform.vmmVersion,
        accelerator: platform.accelerator,
        cpuModel: platform.cpuModel,
        hostCpu: platform.hostCpu,
        mac: platform.mac,
        shape: record.shape,
        diskBytes,
        stateBytes,
      });
      lap('safe');
    } catch (error) {
      try {
        // What makes it paused comes last, so it is not.
        await vm.continue();
        await kept.abandon().catch((second: unknown) => this.#options.log.warn({ err: second, vm: vmId }));
      } catch (second) {
        throw new GuestLostError(
          `the sandbox could not be paused (${(error as Error).message}) and could not go on: ${(second as Error).message}`,
        );
      }
      throw error;
    }
    racePoint('pause:marked');
    await vm.kill();
    lap('ended');
    return laps;
  }

  /** What is left of it here. */
  async remains(vmId: string): Promise<Remains> {
    const { folders } = this.#options;
    const keep = folders.keep(vmId);
    const [record, disk, memory] = await Promise.all([
      folders.load(vmId),
      exists(keptDiskPaths(keep).layer),
      new KeptMemory(keep).read(),
    ]);
    return {
      disk,
      memory: memory !== undefined,
      resumed: record?.purpose === 'resumed',
      hostRestarted: record?.process !== undefined && record.process.bootId !== bootId(),
    };
  }

  /** Whether kept memory could go on here. @throws NotResumableError saying why not */
  async checkMemory(vmId: string): Promise<void> {
    await new KeptMemory(this.#options.folders.keep(vmId)).check(this.#options.templates.platform);
  }

  /** Gives kept memory up. */
  async dropMemory(vmId: string): Promise<void> {
    await new KeptMemory(this.#options.folders.keep(vmId)).remove();
  }

  /** Brings kept memory to the platters. For the background. */
  async settleMemory(vmId: string): Promise<void> {
    await new KeptMemory(this.#options.folders.keep(vmId)).settle();
  }

  /** Path of the root image that the disk was first booted on, where it could be held. */
  async heldImage(vmId: string): Promise<string | undefined> {
    const path = heldImagePath(this.#options.folders.keep(vmId));
    return (await exists(path)) ? path : undefined;
  }
}

/** The guest neither was paused nor goes on. */
export class GuestLostError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'GuestLostError';
  }
}

export { NotResumableError };

/** The last step of a restore: a VM whose guest does not get to run is ended. */
async function finish(running: RunningVm, step: () => Promise<void>): Promise<RunningVm> {
  try {
    await step();
    return running;
  } catch (error) {
    await running.vm.kill();
    throw error;
  }
}

/** A template's memory as a file of one VM: about 40 ms for 100 MB, nothing where the file system clones. */
async function ownMemory(template: string, target: string): Promise<void> {
  await rm(target, { force: true });
  try {
    await run('perl', [MEMORY_SCRIPT, 'own', template, target], { deadlineMs: COPY_DEADLINE_MS });
  } catch (error) {
    await rm(target, { force: true });
    if (error instanceof CommandError && /No space left|Disk quota/.test(error.stderr)) {
      throw new DiskFullError(`the host's disk is full: no room for the sandbox's memory at ${target}`);
    }
    throw error;
  }
}

function heldImagePath(keep: string): string {
  return join(keep, 'root.squashfs');
}

/**
 * An image that a disk lies on must not be tidied away: an image with a second name is not. Across file systems there
 * is no second name; the image is then fetched again when it is gone.
 */
async function holdImage(image: string, keep: string): Promise<void> {
  await link(image, heldImagePath(keep)).catch((error: NodeJS.ErrnoException) => {
    if (
      error.code !== 'EEXIST' &&
      error.code !== 'EXDEV' &&
      error.code !== 'EPERM' &&
      error.code !== 'EMLINK'
    )
      throw error;
  });
}
