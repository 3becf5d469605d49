import { mkdir, rm, stat } from 'node:fs/promises';
import type { Logger } from 'pino';
import { dropUnused, compactChain } from '../disk/layer-compaction.ts';
import { EXT4_MIN_MIB } from '../disk/empty-ext4.ts';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { checkChain, createChain, diskMib, growChain, LAYERS_MAX, readChain } from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import { DamagedManifestError } from '../disk/manifest.ts';
import { makeDisks } from '../disk/vm-disks.ts';
import type { VmDisks } from '../disk/vm-disks.ts';
import { failpoint } from '../failpoint.ts';
import type { TemplateStore } from '../template/template-store.ts';
import { bootId } from '../vmm/process-identity.ts';
import type { Share } from '../volume/share-server.ts';
import type { ForkOrigin } from './captures.ts';
import { BackgroundDurability } from './background-durability.ts';
import { SuspendImage } from './suspend-image.ts';
import type { BootOptions, RunningVm, SandboxDisks } from './boot-options.ts';
import { openMemory } from './mapped-memory.ts';
import { Pausing } from './pausing.ts';
import { fromTemplate, mibOf } from './restoring.ts';
import type { EmptyVm, RestoreSource } from './restoring.ts';
import { allSettled } from './all-settled.ts';
import { hardwareOf, heldImagePath, holdImage } from './vm-folder.ts';
import type { VmFolders, VmRecord } from './vm-folder.ts';

/** What a persistent sandbox has on this host besides a VMM. */
export interface LocalState {
  disk: boolean;
  /** It is paused: there is a complete suspend image. */
  memory: boolean;
  /** Its VMM was resumed from the suspend image. */
  resumed: boolean;
  /** Its VMM ran during an earlier boot of the host. */
  hostRestarted: boolean;
}

type Restore = (
  options: Omit<BootOptions, 'disks'>,
  prepare: (jail: string, owner: { uid: number; gid: number }) => Promise<RestoreSource>,
  purpose?: VmRecord['purpose'],
) => Promise<RunningVm>;

export interface PersistentMachinesOptions {
  folders: VmFolders;
  templates: TemplateStore;
  emptyDisks: EmptyExt4Store;
  localCopies: LocalCopies;
  /** Restores a VM with its disks. Its guest is paused afterwards. */
  restore: Restore;
  /** The same with a waiting VMM that has its memory. */
  restoreInto: (
    empty: EmptyVm,
    options: Omit<BootOptions, 'disks'>,
    prepare: (
      jail: string,
      owner: { uid: number; gid: number },
    ) => Promise<Pick<RestoreSource, 'disks' | 'statePath'>>,
  ) => Promise<RunningVm>;
  /** Boots a VM that shares folders of the host. Its guest is paused before its first instruction. */
  bootWithShares: (
    options: Omit<BootOptions, 'disks' | 'shares'> & { shares: readonly Share[] },
    prepare: (
      jail: string,
      owner: { uid: number; gid: number },
    ) => Promise<Pick<RestoreSource, 'disks' | 'diskMaxMib'>>,
  ) => Promise<RunningVm>;
  log: Logger;
}

/** VMs of persistent sandboxes: their disk outlives the VM, and their memory can. */
export class PersistentMachines {
  readonly #options: PersistentMachinesOptions;
  readonly #durability = new BackgroundDurability();

  constructor(options: PersistentMachinesOptions) {
    this.#options = options;
  }

  /** Like `Machines.boot`, on the existing disk or a new one. There must be no suspend image. */
  async boot(options: BootOptions): Promise<RunningVm> {
    const { templates, restore, bootWithShares } = this.#options;
    const { vmId, shape, disks, signal, shares = [] } = options;
    using template = shares.length > 0 ? undefined : await templates.lease(shape, signal);
    signal?.throwIfAborted();
    const keep = await this.#openKeep(vmId);
    const prepare = async (jail: string, owner: { uid: number; gid: number }) => {
      const scratch = await this.#openDisk(keep, diskMib(disks.scratchMib, true));
      return {
        disks: () => this.#makeDisks(jail, owner, keep, scratch, disks),
        diskMaxMib: largestMib(scratch, disks.dockerDataMib),
      };
    };
    const running = await (template === undefined
      ? bootWithShares({ ...options, shares }, prepare)
      : restore(options, async (...place) => ({
          ...fromTemplate(templates, template),
          ...(await prepare(...place)),
        })));
    return await finish(running, async () => {
      signal?.throwIfAborted();
      await running.vm.continue();
    });
  }

  /** The existing disk or a new one, for a waiting VM. There must be no suspend image. */
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

  /** Folder of the persistent files of a sandbox that boots. */
  async #openKeep(vmId: string): Promise<string> {
    const keep = this.#options.folders.keep(vmId);
    await mkdir(keep, { recursive: true, mode: 0o700 });
    const image = new SuspendImage(keep);
    if ((await image.read()) !== undefined) throw new Error(`VM ${vmId} still has a suspend image`);
    return keep;
  }

  /** Size of the existing disk; undefined when there is none. */
  async existingDiskMib(vmId: string): Promise<number | undefined> {
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
    const rootImagePath = await localCopies.localPath(disks.rootImagePath);
    const [made] = await allSettled([
      makeDisks(emptyDisks, jail, owner, { ...disks, rootImagePath, scratch, persistent: true }),
      holdImage(rootImagePath, keep),
    ]);
    return made;
  }

  /**
   * Resumes from the suspend image. The guest runs afterwards, its processes still frozen.
   * @param options.rootImagePath the same root image that it ran on; not needed when the folder has a link to it (`heldImage`)
   * @throws NotResumableError when the image cannot be resumed on this host. A failure before the guest runs leaves the image
   *   usable, see `localState`.
   */
  async resume(
    options: Omit<BootOptions, 'shape' | 'disks'> & {
      rootImagePath: string;
      purpose?: 'resumed' | 'flushing';
    },
  ): Promise<RunningVm> {
    const { folders, templates, emptyDisks, localCopies, restore } = this.#options;
    const { vmId, signal, rootImagePath, purpose = 'resumed' } = options;
    const keep = folders.keep(vmId);
    const image = new SuspendImage(keep);
    const { suspension, vmm } = await image.check(templates.platform);
    const { shape, diskBytes } = suspension;
    await using opened = new AsyncDisposableStack();
    const prepare = async (jail: string, owner: { uid: number; gid: number }) => {
      const scratch = await this.#openDisk(keep, diskBytes.scratch / 1024 / 1024);
      const near = await localCopies.localPath(rootImagePath);
      const disks = { rootImagePath: near, scratch, persistent: true };
      const memory = opened.use(await openMemory(image.memory, folders.path(vmId)));
      return {
        vmm,
        disks: () => makeDisks(emptyDisks, jail, owner, disks),
        diskMaxMib: largestMib(scratch),
        memory,
        statePath: image.state,
        hardware: image.hardware(suspension),
      };
    };
    this.#durability.abort(vmId);
    const unmarked = image.unmarkDurable();
    unmarked.catch(() => undefined);
    const running = await restore({ ...options, shape }, prepare, purpose);
    return await finish(running, async () => {
      failpoint('resume:loaded');
      await unmarked;
      signal?.throwIfAborted();
      await image.consume();
      failpoint('resume:consumed');
      await running.vm.continue();
      failpoint('resume:continued');
    });
  }

  /**
   * Resumes the child of a fork from its source's memory. The guest runs afterwards, its processes still frozen. Its disk is in
   * its folder already.
   */
  async startForkChild(
    options: Omit<BootOptions, 'shape' | 'disks'> & {
      rootImagePath: string;
      origin: ForkOrigin;
      /** The VMM that has its memory already. Undefined where that is to be started. */
      empty: EmptyVm | undefined;
    },
  ): Promise<RunningVm> {
    const { folders, templates, emptyDisks, localCopies, restore, restoreInto } = this.#options;
    const { vmId, rootImagePath, signal, origin, empty } = options;
    const { memory, statePath, shape, hardware } = origin;
    const vmm = templates.platform.driver.vmms.forState(origin.vmm);
    if (vmm === undefined)
      throw new Error(`the VMM ${origin.vmm} of its source is not on this machine any more`);
    const scratch = await readChain(folders.keep(vmId));
    if (scratch === undefined) throw new Error(`VM ${vmId} has no disk`);
    await checkChain(scratch);
    const place = (jail: string, owner: { uid: number; gid: number }) => ({
      disks: async () => {
        const near = await localCopies.localPath(rootImagePath);
        return await makeDisks(emptyDisks, jail, owner, { rootImagePath: near, scratch, persistent: true });
      },
      statePath,
    });
    let running: RunningVm;
    if (empty !== undefined) {
      running = await restoreInto(empty, { ...options, shape }, async (...where) => {
        failpoint('fork:copied');
        return place(...where);
      });
    } else {
      if (memory === undefined) throw new Error('the VMM with its memory has ended');
      const { fd } = memory;
      const ready = async () => {
        const complete = await memory.ready;
        failpoint('fork:copied');
        return complete;
      };
      running = await restore(
        { ...options, shape },
        async (...where) => ({
          ...place(...where),
          vmm,
          diskMaxMib: largestMib(scratch),
          memory: { fd, ready },
          hardware,
        }),
        'resumed',
      );
    }
    return await finish(running, async () => {
      await rm(statePath);
      signal?.throwIfAborted();
      failpoint('fork:loaded');
      await running.vm.continue();
    });
  }

  /**
   * Starts a pause: copies the memory to the disk while the guest runs. `finish` of the result stops the guest and copies the
   * rest.
   */
  async beginPause(vmId: string, running: RunningVm): Promise<Pausing> {
    const { folders, templates, log } = this.#options;
    const record = await folders.load(vmId);
    if (record === undefined) throw new Error(`there is no VM ${vmId}`);
    return await Pausing.begin({
      running,
      record,
      image: new SuspendImage(folders.keep(vmId)),
      folder: folders.path(vmId),
      jail: { root: folders.jail(vmId), uid: record.uid },
      hardware: hardwareOf(record, folders.path(vmId)),
      platform: templates.platform,
      log: log.child({ vm: vmId }),
    });
  }

  /** What the sandbox has on this host. */
  async localState(vmId: string): Promise<LocalState> {
    const { folders } = this.#options;
    const keep = folders.keep(vmId);
    const [record, disk, memory] = await Promise.all([
      folders.load(vmId),
      readChain(keep).catch((error: unknown) => {
        // Nothing can be started from a damaged disk.
        if (error instanceof DamagedManifestError) return undefined;
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

  /** Whether there is a suspend image, also when the disk is missing. */
  async hasMemory(vmId: string): Promise<boolean> {
    return (await new SuspendImage(this.#options.folders.keep(vmId)).read()) !== undefined;
  }

  /** @throws NotResumableError when the suspend image cannot be resumed on this host */
  async checkMemory(vmId: string): Promise<void> {
    const { folders, templates } = this.#options;
    await new SuspendImage(folders.keep(vmId)).check(templates.platform);
  }

  /** Removes the suspend image. */
  async dropMemory(vmId: string): Promise<void> {
    await new SuspendImage(this.#options.folders.keep(vmId)).remove();
  }

  /** Removes what an unfinished pause has left. */
  async dropPartialMemory(vmId: string): Promise<void> {
    await rm(new SuspendImage(this.#options.folders.keep(vmId)).next, { force: true });
  }

  /** Makes the suspend image durable. To be run in the background. */
  async makeMemoryDurable(vmId: string): Promise<void> {
    await this.#durability.run(vmId, new SuspendImage(this.#options.folders.keep(vmId)));
  }

  /** Resolves when nothing writes to the folder of a VM any more, so that it can be removed. */
  async stopFlushing(vmId: string): Promise<void> {
    await this.#durability.stop(vmId);
  }

  /** Resolves when all suspend images are durable. */
  async allDurable(): Promise<void> {
    await this.#durability.idle();
  }

  /** The existing disk, or a new one. @throws when a layer is not what its manifest says */
  async #openDisk(keep: string, mib: number): Promise<DiskChain> {
    const chain = await readChain(keep);
    if (chain === undefined) return await createChain(this.#options.emptyDisks, keep, mib, 'journal');
    await checkChain(chain);
    // Fewer layers are compacted while the VM runs.
    const compacted = chain.layers.length >= LAYERS_MAX ? await compactChain(chain) : chain;
    const parked = await dropUnused(compacted);
    if (parked.length > 0)
      this.#options.log.error(
        { folder: keep, parked },
        "the manifest of a disk is older than its newest layers: the sandbox starts without what they have; they stay in the disk's folder",
      );
    return compacted === chain ? chain : await growChain(compacted, true);
  }

  /** Path of the link to the root image that the disk was first booted on; undefined when there is none. */
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

/** The last step of a restore. If it fails the VM is killed. */
async function finish(running: RunningVm, step: () => Promise<void>): Promise<RunningVm> {
  try {
    await step();
    return running;
  } catch (error) {
    await running.vm.kill();
    throw error;
  }
}
