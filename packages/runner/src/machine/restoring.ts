import { copyFile, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { VmDisks } from '../disk/vm-disks.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import type { UnsealedMemory } from '../memory/sealed-memory.ts';
import { usableMib } from '../template/machine-size.ts';
import type { GuestSize, Platform } from '../template/machine-size.ts';
import { memoryOf } from '../template/template-store.ts';
import type { LoadedTemplate, TemplateStore } from '../template/template-store.ts';
import { TCG_CACHE_MIB } from '../vmm/command-line.ts';
import type { Hardware } from '../vmm/device-model.ts';
import { DESCRIPTORS } from '../vmm/places.ts';
import { lastWords } from '../vmm/start-vmm.ts';
import { Vm } from '../vmm/vm.ts';
import type { Vmm } from '../vmm/vmm-store.ts';
import type { BootOptions, VmSlot } from './boot-options.ts';
import { attachDisks } from './guest-disks.ts';
import { settled } from './settled.ts';
import type { Stopwatch } from './stopwatch.ts';
import { hardwareOf, holdSystemDisk } from './vm-folder.ts';
import type { VmFolders, VmRecord } from './vm-folder.ts';

/** A state of this size loads in about 3 ms; this is for a machine under heavy load. */
const LOAD_DEADLINE_MS = 15_000;
/** QEMU's own memory: code, heap, and what it caches of disks. The emulator's code cache comes on top. */
const VMM_OVERHEAD_MIB = 96;
/** Threads of a VMM: one a CPU, the main loop, and up to 64 for its disks. */
const VMM_PIDS = 128;
/** A VMM's files may exceed its disks by their tables: 10 bytes for each cluster of 64 KiB, and we allow 16. */
const TABLES_SHARE = 4096;
const FILE_SLACK_MIB = 64;

/** What a VM is restored from, beside its record. */
export interface RestoreSource {
  /** The one that its state was saved with, or fits. */
  vmm: Vmm;
  /** Makes its disks, while the VMM starts; none leaves it with placeholders. */
  disks?: (() => Promise<VmDisks>) | undefined;
  /** Size of the largest of these disks, or of any that it may get later, in MiB. */
  diskMaxMib: number;
  /** Open file of what the guest's memory begins with. It is mapped privately: the file stays as it is. */
  memory: { fd: number; origin?: MemoryOrigin };
  /** Puts into that memory what is missing in it. Devices look into it as soon as their state is loaded. */
  complete?: (vmm: number) => Promise<void>;
  /** Device state that goes with it, and the devices themselves. */
  statePath: string;
  hardware: Hardware;
  /** Called when the state does not load into a VM that is otherwise fine. */
  discard?: () => Promise<void>;
}

/** What a VM without a past of its own is restored from. */
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

/** A VMM that waits for what it is restored from. Its folder and its slot have its own name until then. */
export interface EmptyVm {
  id: string;
  vm: Vm;
  record: VmRecord;
  /** It has mapped this privately. */
  memory: UnsealedMemory;
  /** What that holds already. */
  base: MemoryOrigin;
  /** Of memory that it holds and has not mapped a page of. */
  heldBytes: number;
}

/** How every VM starts: blank, jailed and unprivileged, from a saved state; then its disks are attached. */
export class Restoring {
  readonly #folders: VmFolders;
  readonly #cgroups: CgroupTree;
  readonly #platform: Platform;
  readonly #log: Logger;

  constructor(options: { folders: VmFolders; cgroups: CgroupTree; platform: Platform; log: Logger }) {
    this.#folders = options.folders;
    this.#cgroups = options.cgroups;
    this.#platform = options.platform;
    this.#log = options.log;
  }

  /**
   * Starts a VMM in a folder and a cgroup of its own, loads the state and attaches the disks; the guest is paused.
   * @param prepare what it is restored from, made meanwhile
   * @throws when it cannot be; no VMM is left then, and `Machines.destroy` removes the rest
   */
  async restore(
    options: Omit<BootOptions, 'disks'>,
    clock: Stopwatch,
    prepare: Prepare,
    purpose?: VmRecord['purpose'],
  ): Promise<RestoredVm> {
    const record = this.#newRecord(options, purpose);
    await this.#folders.create(options.vmId, record);
    // When one fails the other has ended, too: it would go on making what is being removed.
    const [source, cgroupProcs] = await settled([
      prepare(this.#folders.jail(options.vmId), ownerOf(options.slot)),
      this.#cgroups.create(record.cgroup, this.limits(options.shape, options.cpu)),
    ]);
    record.hardware = recordedHardware(source.hardware);
    record.vmm = source.vmm.version;
    await holdSystemDisk(source.hardware, this.#folders.path(options.vmId));
    const state = await open(source.statePath, 'r');
    clock.lap('prepare');
    const disks = source.disks?.();
    // Waited for below, and also where something else fails first: what is being made would lie in a removed folder.
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
    clock.lap('start');
    return await this.#load({ vmId: options.vmId, vm, record }, { ...source, disks }, clock);
  }

  /**
   * Starts a VMM that waits for memory and state, which `restoreInto` gives it.
   * @param memory it is not looked into until a state is loaded
   * @param diskMaxMib size of the largest disk that it can be given
   * @throws when it cannot be; then `Machines.destroy` removes the rest
   */
  async startEmpty(
    options: Omit<BootOptions, 'disks'>,
    memory: UnsealedMemory,
    diskMaxMib: number,
  ): Promise<Omit<EmptyVm, 'base' | 'heldBytes'>> {
    const { vmId } = options;
    const { hardware, vmm } = this.#platform;
    const record = { ...this.#newRecord(options), hardware: recordedHardware(hardware), vmm: vmm.version };
    await this.#folders.create(vmId, record);
    await holdSystemDisk(hardware, this.#folders.path(vmId));
    const path = this.#statePath(vmId);
    const [cgroupProcs] = await settled([
      this.#cgroups.create(record.cgroup, this.limits(options.shape, options.cpu)),
      writeFile(path, '', { mode: 0o600 }),
    ]);
    const state = await open(path, 'r');
    try {
      const descriptors = { memoryFd: memory.memory.fd, stateFd: state.fd };
      const vm = await this.#launch(options, record, { vmm, cgroupProcs, diskMaxMib, ...descriptors });
      const started = { ...record, process: vm.identity };
      await this.#folders.save(vmId, started);
      return { id: vmId, vm, record: started, memory };
    } finally {
      await state.close();
    }
  }

  /** Like `restore`, with a VMM that waits; its memory is what `complete` has put into it. */
  async restoreInto(
    empty: EmptyVm,
    options: Omit<BootOptions, 'disks'>,
    clock: Stopwatch,
    prepare: Prepare,
    purpose?: VmRecord['purpose'],
  ): Promise<RestoredVm> {
    const { vmId, shape, cpu } = options;
    const { vm } = empty;
    const record = { ...empty.record, shape, ...(purpose && { purpose }) };
    try {
      await this.#folders.save(empty.id, record);
      await this.#folders.takeOver(empty.id, vmId);
      vm.movedTo(this.#folders.path(vmId)).setConsole(options.onConsole);
      const [source] = await settled([
        prepare(this.#folders.jail(vmId), ownerOf(options.slot)),
        this.#cgroups.setLimits(record.cgroup, this.limits(shape, cpu)),
      ]);
      clock.lap('prepare');
      const disks = source.disks?.();
      disks?.catch(() => undefined);
      // The VMM has opened this very file.
      await copyFile(source.statePath, this.#statePath(vmId)).catch(async (error: unknown) => {
        await disks;
        throw error;
      });
      const restored = await this.#load({ vmId, vm, record }, { ...source, disks }, clock);
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
    const { accelerator, cpuModel, mac } = this.#platform;
    return await Vm.start({
      vmm: parts.vmm,
      machine: {
        accelerator,
        hardware: hardwareOf(record, this.#folders.path(vmId)),
        cpuModel,
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
      log: this.#log.child({ vm: vmId }),
    });
  }

  /** Loads the state into a VMM that waits for it, and attaches the disks. */
  async #load(
    { vmId, vm, record }: { vmId: string; vm: Vm; record: VmRecord },
    source: Omit<RestoreSource, 'disks'> & { disks: Promise<VmDisks> | undefined },
    clock: Stopwatch,
  ): Promise<RestoredVm> {
    const { memory, complete, discard } = source;
    try {
      await complete?.(vm.identity.pid);
      clock.lap('memory');
      await vm.loadState(DESCRIPTORS.state, LOAD_DEADLINE_MS).catch(async (error: unknown) => {
        const said = await lastWords(vm.dir);
        // Damaged, or made by another machine after all: the next one is made anew. A VMM that was killed meanwhile
        // says nothing about its template.
        if (said.includes('load of migration failed')) await discard?.();
        throw new Error(`the VM could not be restored: ${said || (error as Error).message}`, {
          cause: error,
        });
      });
      clock.lap('load');
      const disks = await source.disks;
      const whole = {
        ...record,
        process: vm.identity,
        diskBytes: disks?.bytes ?? { scratch: 0, docker: 0 },
        ...(memory.origin && { memoryOrigin: memory.origin }),
      };
      await settled([
        this.#folders.save(vmId, whole),
        disks === undefined ? Promise.resolve() : attachDisks(vm, disks, 'placeholders'),
      ]);
      clock.lap('attach');
      return { vm, record: whole };
    } catch (error) {
      await vm.kill();
      await Promise.allSettled([source.disks]);
      throw error;
    }
  }

  /** Where a VMM that waits finds its state. */
  #statePath(vmId: string): string {
    return join(this.#folders.path(vmId), 'state');
  }

  /**
   * Most memory that a VM of this shape may have, its VMM included. The guest's counts twice: writing to a page that the
   * sealed memory does not hold yet adds an empty page there, beside the guest's own, and the kernel charges both to the
   * guest that is first.
   */
  memoryMib(shape: GuestSize): number {
    const emulator = this.#platform.accelerator === 'tcg' ? TCG_CACHE_MIB : 0;
    return 2 * usableMib(shape) + VMM_OVERHEAD_MIB + emulator;
  }

  /** What its cgroup allows. */
  limits(shape: GuestSize, cpu: BootOptions['cpu']): Parameters<CgroupTree['create']>[1] {
    return {
      cpu: cpu.guaranteed,
      cpuMax: cpu.max,
      memoryMib: this.memoryMib(shape),
      pids: VMM_PIDS + shape.vcpus,
    };
  }
}

function recordedHardware({ deviceModel, system }: Hardware): NonNullable<VmRecord['hardware']> {
  return { deviceModel, ...(system && { system: system.sha256 }) };
}

function ownerOf({ uid }: VmSlot): { uid: number; gid: number } {
  return { uid, gid: uid };
}

/** Follows from the id alone, so that it is known even where no record was written. */
export function cgroupName(vmId: string): string {
  return `vm-${vmId}`;
}

/** Largest file that a VMM needs for disks of at most this size, both in MiB. */
export function fileMaxMib(diskMaxMib: number): number {
  return diskMaxMib + Math.ceil(diskMaxMib / TABLES_SHARE) + FILE_SLACK_MIB;
}

/** Whole MiB that hold so many bytes. */
export function mibOf(bytes: number): number {
  return Math.ceil(bytes / 1024 / 1024);
}
