import { mkdir, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import {
  belowTop,
  forkChain,
  growChain,
  linkOrCopy,
  readChain,
  saveChain,
  shareChain,
  topBytes,
} from '../disk/disk-chain.ts';
import type { DiskChain } from '../disk/disk-chain.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import { isChildOf } from '../disk/lineage.ts';
import { isTopUnchanged } from '../disk/unchanged.ts';
import { memorySource } from '../memory/guest-memory.ts';
import type { GuestMemory } from '../memory/guest-memory.ts';
import { copyMemoryFile, explainFullDisk } from '../memory/memory-file.ts';
import type { MemoryBudget } from '../memory/memory-budget.ts';
import { Precopy } from '../memory/precopy.ts';
import { failpoint } from '../failpoint.ts';
import type { GuestSize, Platform } from '../template/machine-size.ts';
import { cpuIdentity } from '../vmm/hardware.ts';
import type { Hardware } from '../vmm/hardware.ts';
import { tuning } from '../vmm/tuning.ts';
import type { Tuning } from '../vmm/tuning.ts';
import { isAlive } from '../vmm/process-identity.ts';
import { captureResting } from './capture-resting.ts';
import { ForkMemoryCache } from './fork-memory-cache.ts';
import type { PreparedMemory, SharedForkMemory, TakeVmm } from './fork-memory-cache.ts';
import { shareSuspendImage } from './share-suspend-image.ts';
import { SuspendImage } from './suspend-image.ts';
import type { RunningVm } from './boot-options.ts';
import { takeDisk, takeCheckpoint } from './checkpoint.ts';
import type { Checkpoint, GuestHold, SourceOptions } from './checkpoint.ts';
import { allSettled } from './all-settled.ts';
import { describeMemory } from './snapshot-folder.ts';
import type { CapturedImage, SnapshotFacts, SnapshotFolders } from './snapshot-folder.ts';
import { hardwareOf, heldImagePath, holdSystemDisk, vmmVersionOf } from './vm-folder.ts';
import type { VmFolders, VmRecord } from './vm-folder.ts';
import type { WarmVmm } from './warm-vm.ts';

/** A running VM that is captured. */
export interface CaptureSource {
  vmId: string;
  project?: string | undefined;
  running: RunningVm;
  persistent: boolean;
  hold: GuestHold;
}

/**
 * What a fork's child is restored from; its disk is in its folder already. To be disposed of once the child has been
 * restored, or will not be restored.
 */
export interface ForkOrigin extends AsyncDisposable {
  /** Its memory, unless a VMM has it already. */
  memory: SharedForkMemory | undefined;
  /** The VMM that has the memory already, for the caller to use or discard. Undefined when there is none, and after the first call. */
  takeVmm: () => WarmVmm | undefined;
  /** Resolves when the source is not needed any more, also after an error. */
  copied: Promise<void>;
  statePath: string;
  shape: GuestSize;
  hardware: Hardware;
  /** Version of the VMM that saved it. */
  vmm: string;
}

export interface CapturesOptions {
  folders: VmFolders;
  snapshots: SnapshotFolders;
  platform: Platform;
  localCopies: LocalCopies;
  memoryBudget: MemoryBudget;
  log: Logger;
}

/** Of copies that must not slow down running guests. On a busy machine they take several times as long. */
const BACKGROUND_NICENESS = 10;

/** Captures running and paused sandboxes, as forks and as snapshots. */
export class Captures {
  readonly #options: CapturesOptions;
  readonly #tuning: Tuning;
  readonly #bases: ForkMemoryCache;

  constructor(options: CapturesOptions) {
    this.#options = options;
    this.#tuning = tuning(options.platform.accelerator);
    this.#bases = new ForkMemoryCache(options.memoryBudget, this.#tuning.fork);
  }

  /**
   * Captures a running source as the origin of `child`: its disk in the child's folder, its memory for the caller, who
   * restores the child soon. The source continues after a few milliseconds in any case. Forks of one source must not overlap.
   */
  async fork(source: CaptureSource, child: string, takeVmm?: TakeVmm): Promise<ForkOrigin> {
    return await this.#explainingFullDisk(child, () => this.#fork(source, child, takeVmm));
  }

  async #fork(source: CaptureSource, child: string, takeVmm?: TakeVmm): Promise<ForkOrigin> {
    const { folders, log } = this.#options;
    const { vmId, project, running } = source;
    const record = await this.#record(vmId);
    const keep = await this.#makeEmptyFolder(child);
    const statePath = join(keep, 'state');
    const began = performance.now();
    const preparing = this.#bases.prepare({ vmId, project, vm: running.vm, record }, takeVmm);
    const options = {
      ...this.#checkpointOptions(source, record, 'fork'),
      precopy: async (memory: GuestMemory) => await (await preparing).precopy(memory),
      tuning: this.#tuning.precopy,
    };
    const taking = takeCheckpoint(options, statePath);
    let prepared: PreparedMemory;
    let checkpoint: Checkpoint;
    try {
      [prepared, checkpoint] = await allSettled([preparing, taking]);
      if (hasEnded(prepared)) throw new Error('the VMM with the memory of the child has ended');
    } catch (error) {
      const made = await preparing.catch(() => undefined);
      const isRepeated = made !== undefined && hasEnded(made);
      await made?.abandon();
      if (!isRepeated) throw error;
      log.warn(
        { err: error, vm: vmId, child },
        'a waiting VMM has ended while memory was copied to it; forking without one',
      );
      return await this.#fork(source, child);
    }
    await using unfinished = new AsyncDisposableStack();
    const forked = unfinished.use(prepared.take(join(keep, 'delta')));
    let { vmm } = forked;
    const copied = Promise.resolve(forked.shared?.ready).then(ignore, ignore);
    unfinished.defer(async () => {
      await copied;
      await vmm?.discard();
    });
    try {
      await linkOrCopy(heldImagePath(folders.keep(vmId)), heldImagePath(keep)).catch(() => undefined);
      await holdSystemDisk(hardwareOf(record, folders.path(vmId)), keep);
      await forkChain(checkpoint.disk, keep, true);
    } catch (error) {
      // The next fork may start as soon as this one has failed.
      await copied;
      throw error;
    }
    const ms = Math.round(performance.now() - began);
    log.info({ vm: vmId, child, ms, steps: checkpoint.steps }, 'sandbox forked');
    const resources = unfinished.move();
    const dispose = (): Promise<void> => resources.disposeAsync();
    const take = (): WarmVmm | undefined => {
      const taken = vmm;
      vmm = undefined;
      return taken;
    };
    return {
      memory: forked.shared,
      copied,
      statePath,
      shape: record.shape,
      hardware: hardwareOf(record, keep),
      takeVmm: take,
      vmm: vmmVersionOf(record),
      [Symbol.asyncDispose]: dispose,
    };
  }

  /** Makes `child` a copy of a paused source: paused, with the same memory, disk and devices. */
  async forkPaused(vmId: string, child: string): Promise<void> {
    await this.#explainingFullDisk(child, () => this.#forkPaused(vmId, child));
  }

  async #forkPaused(vmId: string, child: string): Promise<void> {
    const { folders } = this.#options;
    const chain = await readChain(folders.keep(vmId));
    if (chain === undefined) throw new Error(`the disk of VM ${vmId} is not on this machine any more`);
    const keep = await this.#makeEmptyFolder(child);
    // The shared layers must not change any more, so the source gets a new top layer, too.
    await growChain(chain, true);
    failpoint('fork:prepared');
    await shareSuspendImage(folders.keep(vmId), keep);
    await forkChain(chain, keep, true);
    failpoint('fork:copied');
  }

  /** Releases the memory that is cached for further forks of a VM. */
  forget(vmId: string): void {
    this.#bases.forget(vmId);
  }

  /**
   * Captures a running source as a snapshot.
   * @param parentId the snapshot that its disk descends from
   */
  async snapshot(
    id: string,
    kind: 'disk' | 'full',
    source: CaptureSource,
    image: CapturedImage,
    parentId: string | undefined,
  ): Promise<SnapshotFacts> {
    const { snapshots, localCopies } = this.#options;
    const folder = await snapshots.begin(id);
    try {
      const facts =
        kind === 'full'
          ? await this.#takeFull(folder, source, image)
          : await this.#takeDisk(folder, source, image, parentId);
      await linkOrCopy(await localCopies.localPath(image.path), heldImagePath(folder));
      failpoint('snapshot:copied');
      await snapshots.complete(id, facts);
      failpoint('snapshot:completed');
      return facts;
    } catch (error) {
      await snapshots.abandon(id).catch(() => undefined);
      throw explainFullDisk(error, folder, 'the snapshot');
    }
  }

  /** Captures a sandbox that does not run as a snapshot. */
  async snapshotResting(id: string, vmId: string, image: CapturedImage): Promise<void> {
    await captureResting(this.#options, id, vmId, image);
  }

  /**
   * Copies a snapshot into the empty folder of a persistent VM, which is then paused (full snapshot) or stopped (disk
   * snapshot).
   * @throws when the snapshot is not on this host
   */
  async restore(id: string, vmId: string): Promise<void> {
    await this.#explainingFullDisk(vmId, () => this.#restore(id, vmId));
  }

  async #restore(id: string, vmId: string): Promise<void> {
    const { snapshots } = this.#options;
    const folder = snapshots.path(id);
    const chain = await this.diskOf(id);
    const keep = await this.#makeEmptyFolder(vmId);
    const facts = await snapshots.load(id);
    if (facts?.memory !== undefined) await shareSuspendImage(folder, keep);
    else await linkOrCopy(heldImagePath(folder), heldImagePath(keep));
    await forkChain(chain, keep, true);
    failpoint('restore:copied');
  }

  /** The disk of a snapshot, as the origin of new disks. @throws when the snapshot is not on this host */
  async diskOf(id: string): Promise<DiskChain> {
    const chain = await readChain(this.#options.snapshots.path(id));
    if (chain === undefined) throw new Error(`snapshot ${id} is not on this machine any more`);
    return chain;
  }

  async #takeFull(folder: string, source: CaptureSource, image: CapturedImage): Promise<SnapshotFacts> {
    const { platform, log } = this.#options;
    const { vmId, running } = source;
    const record = await this.#record(vmId);
    const vmm = vmmVersionOf(record);
    const suspendImage = new SuspendImage(folder);
    const origin = await memorySource(running.vm.identity.pid, record.memoryOrigin);
    await copyMemoryFile(origin, suspendImage.memory, BACKGROUND_NICENESS);
    await using file = await open(suspendImage.memory, 'r+');
    const checkpoint = await takeCheckpoint(
      {
        ...this.#checkpointOptions(source, record, 'snapshot'),
        precopy: async (memory) => await Precopy.begin(running.vm, memory, file.fd),
        tuning: this.#tuning.precopy,
      },
      suspendImage.state,
    );
    const chain = await shareChain(checkpoint.disk, folder);
    await saveChain(chain, true);
    const hardware = hardwareOf(record, this.#options.folders.path(vmId));
    const { stateBytes } = checkpoint;
    const { diskBytes } = running;
    await suspendImage.complete(platform, { vmm, shape: record.shape, diskBytes, stateBytes, hardware });
    await suspendImage.makeDurable();
    log.info({ vm: vmId, kind: 'full', steps: checkpoint.steps }, 'snapshot taken');
    return {
      kind: 'full',
      vmId,
      manifest: image.digest,
      image: image.config,
      noChanges: false,
      diskBytes: await topBytes(chain),
      scratchBytes: chain.bytes,
      memory: {
        shape: record.shape,
        vmm,
        hostCpu: cpuIdentity(platform.hostCpu, hardware),
        accelerator: platform.accelerator,
        ...(await describeMemory(folder, platform.driver)),
      },
    };
  }

  async #takeDisk(
    folder: string,
    source: CaptureSource,
    image: CapturedImage,
    parentId: string | undefined,
  ): Promise<SnapshotFacts> {
    const { vmId } = source;
    const record = await this.#record(vmId);
    const { disk, steps } = await takeDisk(this.#checkpointOptions(source, record, 'snapshot'));
    const parent = parentId && (await readChain(this.#options.snapshots.path(parentId)));
    const noChanges = Boolean(parent) && isChildOf(disk, parent as DiskChain) && (await isTopUnchanged(disk));
    const content = noChanges ? belowTop(disk) : disk;
    const chain = await shareChain(content, folder);
    await saveChain(chain, true);
    this.#options.log.info({ vm: vmId, kind: 'disk', steps }, 'snapshot taken');
    return {
      kind: 'disk',
      vmId,
      manifest: image.digest,
      image: image.config,
      noChanges,
      diskBytes: noChanges ? 0 : await topBytes(chain),
      scratchBytes: chain.bytes,
    };
  }

  #checkpointOptions(
    { vmId, running, persistent, hold }: CaptureSource,
    record: VmRecord,
    operation: SourceOptions['operation'],
  ): SourceOptions {
    const { folders } = this.#options;
    return {
      vmId,
      running,
      record,
      disk: persistent ? folders.keep(vmId) : folders.disk(vmId),
      jail: folders.jail(vmId),
      persistent,
      hold,
      operation,
    };
  }

  async #record(vmId: string): Promise<VmRecord> {
    const record = await this.#options.folders.load(vmId);
    if (record === undefined) throw new Error(`there is no VM ${vmId}`);
    return record;
  }

  /** Runs `work`. @throws DiskFullError when there is no space for the files of `vmId` */
  async #explainingFullDisk<T>(vmId: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw explainFullDisk(error, this.#options.folders.keep(vmId), 'the sandbox');
    }
  }

  async #makeEmptyFolder(vmId: string): Promise<string> {
    const keep = this.#options.folders.keep(vmId);
    await rm(keep, { recursive: true, force: true });
    await mkdir(keep, { recursive: true, mode: 0o700 });
    return keep;
  }
}

function hasEnded({ vmm }: PreparedMemory): boolean {
  return vmm !== undefined && !isAlive(vmm.empty.vm.identity);
}

function ignore(): void {}
