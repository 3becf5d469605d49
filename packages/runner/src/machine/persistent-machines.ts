import { link, mkdir, open, rm, stat } from 'node:fs/promises';
import type { Logger } from 'pino';
import { dropUnused, compactChain } from '../disk/layer-compaction.ts';
import { EXT4_MIN_MIB } from '../disk/empty-ext4.ts';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { checkChain, createChain, diskMib, growChain, LAYERS_MAX, readChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import { DamagedListError } from '../disk/manifest.ts';
import { makeDisks } from '../disk/vm-disks.ts';
import type { VmDisks } from '../disk/vm-disks.ts';
import { failpoint } from '../failpoint.ts';
import type { MemoryBudget } from '../memory/memory-budget.ts';
import type { PageCopiers } from '../memory/page-copier.ts';
import { SealedCache } from '../memory/sealed-cache.ts';
import type { TemplateStore } from '../template/template-store.ts';
import { bootId } from '../vmm/process-identity.ts';
import type { VmmStore } from '../vmm/vmm-store.ts';
import { findGuestMemory } from '../memory/guest-memory.ts';
import type { MachineSize } from '../template/machine-size.ts';
import type { ForkOrigin } from './captures.ts';
import type { ForkedMemory } from './fork-memory-cache.ts';
import { BackgroundDurability } from './background-durability.ts';
import { SuspendImage } from './suspend-image.ts';
import type { BootOptions, RunningVm, SandboxDisks } from './boot-options.ts';
import { openMemory } from './mapped-memory.ts';
import { Pausing } from './pausing.ts';
import { fromTemplate, mibOf } from './restoring.ts';
import type { EmptyVm, RestoreSource } from './restoring.ts';
import { settled } from './settled.ts';
import { hardwareOf, heldImagePath } from './vm-folder.ts';
import type { VmFolders, VmRecord } from './vm-folder.ts';

/** What is left of a persistent sandbox on this machine, VMM apart. */
export interface LocalState {
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
  prepare: (jail: string, owner: { uid: number; gid: number }) => Promise<RestoreSource>,
  purpose?: VmRecord['purpose'],
  /** A VMM that waits, instead of one that is started. */
  empty?: EmptyVm,
) => Promise<RunningVm>;

export interface PersistentMachinesOptions {
  folders: VmFolders;
  templates: TemplateStore;
  vmms: VmmStore;
  emptyDisks: EmptyExt4Store;
  localCopies: LocalCopies;
  copiers: PageCopiers;
  memoryBudget: MemoryBudget;
  /** Restores a VM with its disks; its guest is paused afterwards. */
  restore: Restore;
  /** Lets a VM have its memory once more while a copy of it exists, and no longer. */
  allowCopy: (record: VmRecord, allowed: boolean) => Promise<void>;
  log: Logger;
}

/** VMs whose disk outlives them, and whose memory can. */
export class PersistentMachines {
  readonly #options: PersistentMachinesOptions;
  readonly #sealed: SealedCache;
  readonly #durability = new BackgroundDurability();

  constructor(options: PersistentMachinesOptions) {
    this.#options = options;
    this.#sealed = new SealedCache(options.memoryBudget);
  }

  /** Like `Machines.boot`, on the disk that is kept or a new one. Memory that was kept must be gone. */
  async boot(options: BootOptions): Promise<RunningVm> {
    const { templates, restore } = this.#options;
    const { vmId, shape, disks, signal } = options;
    const template = await templates.ensure(shape);
    signal?.throwIfAborted();
    const keep = await this.#openKeep(vmId);
    const running = await restore(options, async (jail, owner) => {
      const scratch = await this.#openDisk(keep, diskMib(disks.scratchMib, true));
      return {
        ...fromTemplate(templates, template),
        disks: () => this.#makeDisks(jail, owner, keep, scratch, disks),
        diskMaxMib: largestMib(scratch, disks.dockerDataMib),
      };
    });
    return await finish(running, async () => {
      signal?.throwIfAborted();
      await running.vm.continue();
    });
  }

  /** The disk that is kept or a new one, for a VM that waits. Memory that was kept must be gone. */
  async openDisks(
    vmId: string,
    jail: string,
    owner: { uid: number; gid: number },
    disks: SandboxDisks,
  ): Promise<VmDisks> {
    const keep = await this.#openKeep(vmId);
    const scratch = await this.#openDisk(keep, diskMib(disks.scratchMib, true));
    return await this.#makeDisks(jail, owner, keep, scratch, disks);
  }

  /** Folder of what is kept of a sandbox that is to boot. */
  async #openKeep(vmId: string): Promise<string> {
    const keep = this.#options.folders.keep(vmId);
    await mkdir(keep, { recursive: true, mode: 0o700 });
    const kept = new SuspendImage(keep);
    if ((await kept.read()) !== undefined) throw new Error(`the memory of VM ${vmId} is still kept`);
    return keep;
  }

  /** Size of the disk that is kept; undefined when there is none. */
  async keptDiskMib(vmId: string): Promise<number | undefined> {
    const chain = await readChain(this.#options.folders.keep(vmId));
    return chain && mibOf(chain.bytes);
  }

  async #makeDisks(
    jail: string,
    owner: { uid: number; gid: number },
    keep: string,
    scratch: DiskChain,
    disks: SandboxDisks,
  ): Promise<VmDisks> {
    const { emptyDisks, localCopies } = this.#options;
    const rootImagePath = await localCopies.near(disks.rootImagePath);
    const [made] = await settled([
      makeDisks(emptyDisks, jail, owner, { ...disks, rootImagePath, scratch, persistent: true }),
      holdImage(rootImagePath, keep),
    ]);
    return made;
  }

  /**
   * Goes on from kept memory: the guest runs again, its processes frozen as they were.
   * @param options.rootImagePath the very image it ran on; not needed when that is held (`heldImage`)
   * @throws NotResumableError when the memory fits no VM here. Until the guest goes on, a failure costs the memory
   *   nothing; `localState` tells.
   */
  async resume(
    options: Omit<BootOptions, 'shape' | 'disks'> & {
      rootImagePath: string;
      purpose?: 'resumed' | 'flushing';
      /** Whose budget memory is held in, if it has to be. */
      project?: string | undefined;
    },
  ): Promise<RunningVm> {
    const { folders, templates, vmms, emptyDisks, localCopies, restore } = this.#options;
    const { vmId, signal, rootImagePath, purpose = 'resumed', project } = options;
    const keep = folders.keep(vmId);
    const kept = new SuspendImage(keep);
    const { suspension, vmm } = await kept.check(templates.platform, vmms);
    const { shape, diskBytes } = suspension;
    await using opened = new AsyncDisposableStack();
    const prepare = async (jail: string, owner: { uid: number; gid: number }) => {
      const scratch = await this.#openDisk(keep, diskBytes.scratch / 1024 / 1024);
      const near = await localCopies.near(rootImagePath);
      const disks = { rootImagePath: near, scratch, persistent: true };
      const memory = opened.use(
        await openMemory(kept.memory, folders.path(vmId), vmm, this.#sealed, project),
      );
      return {
        vmm,
        disks: () => makeDisks(emptyDisks, jail, owner, disks),
        diskMaxMib: largestMib(scratch),
        memory,
        complete: () => memory.ready,
        statePath: kept.state,
        hardware: kept.hardware(suspension),
      };
    };
    this.#durability.abort(vmId);
    const unsettled = kept.unsettle();
    unsettled.catch(() => undefined);
    const running = await restore({ ...options, shape }, prepare, purpose);
    return await finish(running, async () => {
      failpoint('resume:loaded');
      await unsettled;
      signal?.throwIfAborted();
      await kept.consume();
      failpoint('resume:consumed');
      await running.vm.continue();
      failpoint('resume:continued');
    });
  }

  /**
   * Goes on from the memory of a source that was just forked, its processes frozen as they were. What is on the disk is
   * in its folder already.
   */
  async startForkChild(
    options: Omit<BootOptions, 'shape' | 'disks'> & {
      rootImagePath: string;
      origin: ForkOrigin;
      /** The VMM that has that memory already. */
      empty: EmptyVm | undefined;
    },
  ): Promise<RunningVm> {
    const { folders, vmms, emptyDisks, localCopies, restore } = this.#options;
    const { vmId, rootImagePath, signal, origin, empty } = options;
    const { memory, statePath, shape, hardware } = origin;
    const vmm = vmms.forState(origin.vmm);
    if (vmm === undefined)
      throw new Error(`the VMM ${origin.vmm} of its source is not on this machine any more`);
    const scratch = await readChain(folders.keep(vmId));
    if (scratch === undefined) throw new Error(`VM ${vmId} has no disk`);
    await checkChain(scratch);
    const running = await restore(
      { ...options, shape },
      (jail, owner) =>
        Promise.resolve({
          vmm,
          disks: async () => {
            const near = await localCopies.near(rootImagePath);
            return await makeDisks(emptyDisks, jail, owner, {
              rootImagePath: near,
              scratch,
              persistent: true,
            });
          },
          diskMaxMib: largestMib(scratch),
          memory,
          complete: (vmm: number) => this.#completeMemory(memory, vmm, shape),
          statePath,
          hardware,
        }),
      'resumed',
      empty,
    );
    return await finish(running, async () => {
      await rm(statePath);
      signal?.throwIfAborted();
      failpoint('fork:loaded');
      await running.vm.continue();
    });
  }

  async #completeMemory({ ready }: ForkedMemory, vmm: number, shape: MachineSize): Promise<void> {
    const { delta } = await ready;
    failpoint('fork:copied');
    if (delta === undefined) return;
    const file = await open(delta, 'r');
    try {
      const memory = await findGuestMemory(vmm, shape.memMib * 1024 * 1024);
      await this.#options.copiers.ahead.applyDelta(file.fd, memory);
    } finally {
      await file.close();
    }
    await rm(delta);
  }

  /**
   * Begins a pause: brings the memory to the disk while the guest goes on. `finish` of what comes back stops the guest
   * and keeps the rest.
   */
  async beginPause(vmId: string, running: RunningVm): Promise<Pausing> {
    const { folders, templates, copiers, allowCopy, log } = this.#options;
    const record = await folders.load(vmId);
    if (record === undefined) throw new Error(`there is no VM ${vmId}`);
    return await Pausing.begin({
      running,
      record,
      kept: new SuspendImage(folders.keep(vmId)),
      folder: folders.path(vmId),
      jail: { root: folders.jail(vmId), uid: record.uid },
      hardware: hardwareOf(record, folders.path(vmId)),
      platform: templates.platform,
      copiers,
      allowCopy: (allowed) => allowCopy(record, allowed),
      log: log.child({ vm: vmId }),
    });
  }

  /** What is left of it here. */
  async localState(vmId: string): Promise<LocalState> {
    const { folders } = this.#options;
    const keep = folders.keep(vmId);
    const [record, disk, memory] = await Promise.all([
      folders.load(vmId),
      readChain(keep).catch((error: unknown) => {
        // Nothing can be started from that.
        if (error instanceof DamagedListError) return undefined;
        throw error;
      }),
      new SuspendImage(keep).read(),
    ]);
    return {
      disk: disk !== undefined,
      memory: memory !== undefined,
      resumed: record?.purpose === 'resumed',
      hostRestarted: record?.process !== undefined && record.process.bootId !== bootId(),
    };
  }

  /** Whether memory is kept, whatever became of the disk. */
  async hasMemory(vmId: string): Promise<boolean> {
    return (await new SuspendImage(this.#options.folders.keep(vmId)).read()) !== undefined;
  }

  /** Whether kept memory could go on here. @throws NotResumableError saying why not */
  async checkMemory(vmId: string): Promise<void> {
    const { folders, templates, vmms } = this.#options;
    await new SuspendImage(folders.keep(vmId)).check(templates.platform, vmms);
  }

  /** Gives kept memory up. */
  async dropMemory(vmId: string): Promise<void> {
    await new SuspendImage(this.#options.folders.keep(vmId)).remove();
  }

  /** What a pause that was not finished has left. */
  async dropPartialMemory(vmId: string): Promise<void> {
    await rm(new SuspendImage(this.#options.folders.keep(vmId)).next, { force: true });
  }

  /** Makes kept memory durable. For the background. */
  async settleMemory(vmId: string): Promise<void> {
    await this.#durability.run(vmId, new SuspendImage(this.#options.folders.keep(vmId)));
  }

  /** Before the folder of a VM is removed: nothing writes to it any more. */
  async stopSettling(vmId: string): Promise<void> {
    await this.#durability.stop(vmId);
  }

  /** Resolves when all kept memory is durable. */
  async settled(): Promise<void> {
    await this.#durability.idle();
  }

  /** The disk that is kept, or a new one. @throws when what is there is not what was made there */
  async #openDisk(keep: string, mib: number): Promise<DiskChain> {
    const chain = await readChain(keep);
    if (chain === undefined) return await createChain(this.#options.emptyDisks, keep, mib, 'journal');
    await checkChain(chain);
    // As long as a VMM can open them, that has time until it runs.
    const compacted = chain.layers.length >= LAYERS_MAX ? await compactChain(chain) : chain;
    await dropUnused(compacted);
    return compacted === chain ? chain : await growChain(compacted, true);
  }

  /** Path of the root image that the disk was first booted on, where it could be held. */
  async heldImage(vmId: string): Promise<string | undefined> {
    const path = heldImagePath(this.#options.folders.keep(vmId));
    return await stat(path).then(
      () => path,
      () => undefined,
    );
  }
}

/** Size of the larger disk, in MiB. */
function largestMib(scratch: DiskChain, dockerMib = 0): number {
  return Math.max(mibOf(scratch.bytes), dockerMib, EXT4_MIN_MIB);
}

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

/**
 * An image that a disk lies on must not be tidied away: an image with a second name is not. Where there can be none, the image
 * is fetched again when it is gone.
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
