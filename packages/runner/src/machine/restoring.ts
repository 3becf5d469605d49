import { copyFile, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { OomKills } from '../cgroup/oom-kills.ts';
import type { VmDisks } from '../disk/vm-disks.ts';
import { findGuestMemory } from '../memory/guest-memory.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import { mapHoles } from '../memory/map-holes.ts';
import { applyPages } from '../memory/precopy.ts';
import { usableMib } from '../template/machine-size.ts';
import type { GuestSize, Platform } from '../template/machine-size.ts';
import { memoryOf } from '../template/template-store.ts';
import type { LoadedTemplate, TemplateStore } from '../template/template-store.ts';
import { StateRefusedError } from '../vmm/driver.ts';
import type { Vm, Vmm } from '../vmm/driver.ts';
import type { Hardware } from '../vmm/hardware.ts';
import { overheadMib, tuning } from '../vmm/tuning.ts';
import type { BootOptions, VmSlot } from './boot-options.ts';
import { allSettled } from './all-settled.ts';
import type { Stopwatch } from './stopwatch.ts';
import { hardwareOf, holdSystemDisk } from './vm-folder.ts';
import type { RecordedHardware, VmFolders, VmRecord } from './vm-folder.ts';

/** Threads of a VMM besides its vCPUs: the main loop, and up to 64 of the thread pool for its disks. */
const VMM_PIDS = 128;
/** qcow2 metadata adds 10 bytes for each cluster of 64 KiB to a file; 16 are allowed. */
const TABLES_SHARE = 4096;
const FILE_SLACK_MIB = 64;
const MIB = 2 ** 20;

/** What a VM is restored from, besides its record. */
export interface RestoreSource {
  /** The VMM that its state was saved with, or a compatible one. */
  vmm: Vmm;
  /** Creates its disks while the VMM starts. Without it the VM keeps its placeholders. */
  disks?: (() => Promise<VmDisks>) | undefined;
  /** Size of the largest disk that it has or may get later, in MiB. */
  diskMaxMib: number;
  /** Open file with the guest's initial memory, which is mapped privately: the file does not change. */
  memory: {
    fd: number;
    origin?: MemoryOrigin;
    /** Resolves when the file is complete, with a file of differences from it if there are any. It is complete by default. */
    ready?: () => Promise<{ delta?: string }>;
  };
  /** The device state that belongs to the memory, and the device model. */
  statePath: string;
  hardware: Hardware;
  /** Called when the VMM refuses the state, which is then damaged or of another machine. */
  discard?: () => Promise<void>;
}

/** The source of a VM that boots: the template of its machine size. */
export function fromTemplate(
  templates: TemplateStore,
  template: LoadedTemplate,
): Omit<RestoreSource, 'disks' | 'diskMaxMib'> {
  return {
    vmm: templates.platform.vmm,
    memory: memoryOf(template),
    statePath: template.statePath,
    hardware: templates.platform.hardware,
    discard: () => templates.discard(template.key),
  };
}

type Prepare = (jail: string, owner: { uid: number; gid: number }) => Promise<RestoreSource>;

/** A VM whose guest is paused. */
export interface RestoredVm {
  vm: Vm;
  record: VmRecord & { diskBytes: { scratch: number; docker: number } };
}

/**
 * A VMM that waits for a state. It has the memory of a template, to which what the guest of that state has written is added. Its
 * folder and its slot have a name of their own until then.
 */
export interface EmptyVm {
  id: string;
  vm: Vm;
  /** With the template's file (`memoryOrigin`). */
  record: VmRecord;
}

/** The start path of all VMs: a blank, jailed and unprivileged VMM loads a saved state, then its disks are attached. */
export class Restoring {
  readonly #folders: VmFolders;
  readonly #cgroups: CgroupTree;
  readonly #oomKills: OomKills;
  readonly #platform: Platform;
  readonly #log: Logger;

  constructor(options: {
    folders: VmFolders;
    cgroups: CgroupTree;
    oomKills: OomKills;
    platform: Platform;
    log: Logger;
  }) {
    this.#folders = options.folders;
    this.#cgroups = options.cgroups;
    this.#oomKills = options.oomKills;
    this.#platform = options.platform;
    this.#log = options.log;
  }

  /**
   * Starts a VMM in a folder and a cgroup of its own, loads the state and attaches the disks. The guest is paused.
   * @param prepare provides the source, concurrently
   * @throws when the restore fails; no VMM is left then, and `Machines.destroy` removes the rest
   */
  async restore(
    options: Omit<BootOptions, 'disks'>,
    clock: Stopwatch,
    prepare: Prepare,
    purpose?: VmRecord['purpose'],
  ): Promise<RestoredVm> {
    const record = this.#newRecord(options, purpose);
    await this.#folders.create(options.vmId, record);
    // Also waits for the other one after an error: it must not create files in a folder that is being removed.
    const [source, cgroupProcs] = await allSettled([
      prepare(this.#folders.jail(options.vmId), ownerOf(options.slot)),
      this.#cgroups.create(record.cgroup, this.limits(withoutHoles(record), options.cpu)),
    ]);
    record.hardware = recordedHardware(source.hardware);
    record.vmm = source.vmm.version;
    await holdSystemDisk(source.hardware, this.#folders.path(options.vmId));
    const state = await open(source.statePath, 'r');
    clock.mark('prepare');
    const disks = source.disks?.();
    // Waited for also when another step fails first: disks must not be created in a folder that is being removed.
    const disksSettled = Promise.allSettled([disks]);
    let vm: Vm;
    try {
      const { vmm, diskMaxMib, memory } = source;
      vm = await this.#launch(options, record, {
        vmm,
        cgroupProcs,
        diskMaxMib,
        memoryFd: memory.fd,
        stateFd: state.fd,
      });
    } catch (error) {
      await disksSettled;
      throw error;
    } finally {
      await state.close();
    }
    clock.mark('start');
    return await this.#load({ vmId: options.vmId, vm, record }, { ...source, disks }, clock);
  }

  /**
   * Starts a VMM that waits for a state, see `restoreInto`.
   * @param memory of the template
   * @param diskMaxMib size of the largest disk that can be attached
   * @throws when the start fails; then `Machines.destroy` removes the rest
   */
  async startEmpty(
    options: Omit<BootOptions, 'disks'>,
    memory: { fd: number; origin: MemoryOrigin },
    diskMaxMib: number,
  ): Promise<EmptyVm> {
    const { vmId } = options;
    const { hardware, vmm } = this.#platform;
    const record = { ...this.#newRecord(options), hardware: recordedHardware(hardware), vmm: vmm.version };
    await this.#folders.create(vmId, record);
    await holdSystemDisk(hardware, this.#folders.path(vmId));
    const path = this.#statePath(vmId);
    const [cgroupProcs] = await allSettled([
      this.#cgroups.create(record.cgroup, this.limits(withoutHoles(record), options.cpu)),
      writeFile(path, '', { mode: 0o600 }),
    ]);
    const state = await open(path, 'r');
    try {
      const descriptors = { memoryFd: memory.fd, stateFd: state.fd };
      const vm = await this.#launch(options, record, { vmm, cgroupProcs, diskMaxMib, ...descriptors });
      const fileHolesMib = await this.#completeMemory(vm, record, memory);
      const started = {
        ...record,
        process: vm.identity,
        memoryOrigin: memory.origin,
        ...(fileHolesMib !== undefined && { fileHolesMib }),
      };
      await this.#folders.save(vmId, started);
      return { id: vmId, vm, record: started };
    } finally {
      await state.close();
    }
  }

  /** Like `restore`, with a waiting VMM that has all of the memory already. Its guest continues from there. */
  async restoreInto(
    empty: EmptyVm,
    options: Omit<BootOptions, 'disks'>,
    clock: Stopwatch,
    prepare: (...place: Parameters<Prepare>) => Promise<Pick<RestoreSource, 'disks' | 'statePath'>>,
  ): Promise<RestoredVm> {
    const { vmId, shape, cpu } = options;
    const { vm } = empty;
    const record = { ...empty.record, shape, purpose: 'resumed' as const };
    try {
      await this.#folders.save(empty.id, record);
      await this.#folders.takeOver(empty.id, vmId);
      vm.movedTo(this.#folders.path(vmId)).setConsole(options.onConsole);
      const [source] = await allSettled([
        prepare(this.#folders.jail(vmId), ownerOf(options.slot)),
        this.#cgroups.setLimits(record.cgroup, this.limits(record, cpu)),
      ]);
      clock.mark('prepare');
      const disks = source.disks?.();
      disks?.catch(() => undefined);
      // The VMM has this file open.
      await copyFile(source.statePath, this.#statePath(vmId)).catch(async (error: unknown) => {
        await disks;
        throw error;
      });
      const restored = await this.#load({ vmId, vm, record }, { disks }, clock);
      await rm(this.#statePath(vmId));
      return restored;
    } catch (error) {
      await vm.kill();
      throw error;
    }
  }

  #newRecord(
    { vmId, slot, shape }: Pick<BootOptions, 'vmId' | 'slot' | 'shape'>,
    purpose?: VmRecord['purpose'],
  ): VmRecord {
    return {
      cgroup: cgroupName(vmId),
      uid: slot.uid,
      shape,
      startedIn: this.#folders.path(vmId),
      ...(purpose && { purpose }),
    };
  }

  async #launch(
    { vmId, slot, shape, onConsole }: Omit<BootOptions, 'disks'>,
    record: VmRecord,
    parts: { vmm: Vmm; cgroupProcs: string[]; diskMaxMib: number; memoryFd: number; stateFd: number },
  ): Promise<Vm> {
    const { accelerator, driver, mac } = this.#platform;
    return await driver.start({
      vmm: parts.vmm,
      machine: {
        accelerator,
        hardware: hardwareOf(record, this.#folders.path(vmId)),
        vcpus: shape.vcpus,
        memMib: shape.memMib,
        sharing: 'private',
        mac,
      },
      memoryFd: parts.memoryFd,
      stateFd: parts.stateFd,
      dir: this.#folders.path(vmId),
      jail: { root: this.#folders.jail(vmId), ...ownerOf(slot) },
      netns: slot.netnsPath,
      tap: slot.tap,
      cgroupProcs: parts.cgroupProcs,
      fileMaxMib: fileMaxMib(parts.diskMaxMib),
      onConsole,
      explainKill: this.#oomKills.watch(record.cgroup),
      log: this.#log.child({ vm: vmId }),
    });
  }

  /** Loads the state into a waiting VMM, and attaches the disks. @param source.memory undefined if the VMM has all of it */
  async #load(
    { vmId, vm, record }: { vmId: string; vm: Vm; record: VmRecord },
    source: Partial<Pick<RestoreSource, 'memory' | 'discard'>> & { disks: Promise<VmDisks> | undefined },
    clock: Stopwatch,
  ): Promise<RestoredVm> {
    const { memory, discard } = source;
    try {
      const fileHolesMib = memory && (await this.#completeMemory(vm, record, memory));
      clock.mark('memory');
      await vm.loadState().catch(async (error: unknown) => {
        // It is discarded and made again.
        if (error instanceof StateRefusedError) await discard?.();
        throw error;
      });
      clock.mark('load');
      const disks = await source.disks;
      const whole = {
        ...record,
        process: vm.identity,
        diskBytes: disks?.bytes ?? { scratch: 0, docker: 0 },
        ...(memory?.origin && { memoryOrigin: memory.origin }),
        ...(fileHolesMib !== undefined && { fileHolesMib }),
      };
      await allSettled([
        this.#folders.save(vmId, whole),
        disks === undefined ? Promise.resolve() : vm.disks.attach(disks, 'placeholders'),
      ]);
      clock.mark('attach');
      return { vm, record: whole };
    } catch (error) {
      await vm.kill();
      await Promise.allSettled([source.disks]);
      throw error;
    }
  }

  /** Must be done before the state is loaded, as devices then read the memory. @returns `VmRecord.fileHolesMib` */
  async #completeMemory(
    vm: Vm,
    record: VmRecord,
    { ready }: RestoreSource['memory'],
  ): Promise<number | undefined> {
    const { delta } = (await ready?.()) ?? {};
    const memory = await findGuestMemory(vm.identity.pid, record.shape.memMib * MIB);
    const fileHolesMib = await mapHoles(memory).then(mibOf, (error: unknown) => {
      this.#log.warn({ err: error }, 'the memory of a VM may take twice its size: its VMM cannot be traced');
      return undefined;
    });
    await this.#cgroups.setMemoryLimit(record.cgroup, this.memoryMib({ ...record, fileHolesMib }));
    if (delta !== undefined) {
      await applyPages(delta, memory);
      await rm(delta);
    }
    return fileHolesMib;
  }

  /** The file from which a waiting VMM loads its state. */
  #statePath(vmId: string): string {
    return join(this.#folders.path(vmId), 'state');
  }

  /**
   * Memory limit of a VM, VMM included. What the guest maps from holes of the file of its initial memory counts twice: the first write to
   * a page of one allocates an empty page of the file, in addition to the guest's own, and the kernel may charge both to the
   * cgroup of that guest.
   */
  memoryMib({ shape, shares, fileHolesMib = shape.memMib }: MemoryFacts): number {
    const { accelerator } = this.#platform;
    const usable = usableMib(shape);
    const twice = Math.min(usable, fileHolesMib);
    return (
      usable + twice + overheadMib(accelerator, shape.memMib) + (shares ? tuning(accelerator).bootMib : 0)
    );
  }

  /**
   * Most memory that a VMM and its guest may have written, in MiB. Undefined where the sandbox gets all memory of its machine.
   * @param sharesFolders then the guest boots, and pages that its boot has used may be among those that its agent reserves
   */
  writtenMaxMib(shape: GuestSize, sharesFolders: boolean): number | undefined {
    if (shape.reservedMib === undefined) return undefined;
    const { vmmMib, bootMib } = tuning(this.#platform.accelerator);
    return usableMib(shape) + vmmMib + (sharesFolders ? bootMib : 0);
  }

  /** Limits of its cgroup. */
  limits(facts: MemoryFacts, cpu: BootOptions['cpu']): Parameters<CgroupTree['create']>[1] {
    return {
      cpu: cpu.guaranteed,
      cpuMax: cpu.max,
      memoryMib: this.memoryMib(facts),
      pids: VMM_PIDS + facts.shape.vcpus,
    };
  }
}

/** What the memory of a VM's guest needs follows from these. */
type MemoryFacts = Pick<VmRecord, 'shape' | 'shares'> & { fileHolesMib?: number | undefined };

/** A VMM that has not loaded a state has touched none of its guest's memory. */
function withoutHoles(record: VmRecord): MemoryFacts {
  return { ...record, fileHolesMib: 0 };
}

/** As a record of a VM has it. */
export function recordedHardware({ deviceModel, system, cpu }: Hardware): RecordedHardware {
  return { deviceModel, system: system.sha256, ...(cpu && { cpu }) };
}

/** User and group of a VMM. */
export function ownerOf({ uid }: VmSlot): { uid: number; gid: number } {
  return { uid, gid: uid };
}

/** Derived from the id, so that it is known also without a record. */
export function cgroupName(vmId: string): string {
  return `vm-${vmId}`;
}

/** RLIMIT_FSIZE of a VMM for disks of at most this size, both in MiB. */
export function fileMaxMib(diskMaxMib: number): number {
  return diskMaxMib + Math.ceil(diskMaxMib / TABLES_SHARE) + FILE_SLACK_MIB;
}

/** Whole MiB that hold so many bytes. */
export function mibOf(bytes: number): number {
  return Math.ceil(bytes / MIB);
}
