import { open } from 'node:fs/promises';
import type { Logger } from 'pino';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { VmDisks } from '../disk/vm-disks.ts';
import type { MemoryOrigin } from '../memory/guest-memory.ts';
import type { Platform, Shape } from '../template/shape.ts';
import { TCG_CACHE_MIB } from '../vmm/command-line.ts';
import type { Hardware } from '../vmm/device-model.ts';
import { lastWords, Vm } from '../vmm/vm.ts';
import type { BootOptions } from './machines.ts';
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
    prepare: (jail: string, owner: { uid: number; gid: number }) => Promise<RestoreSource>,
    purpose?: VmRecord['purpose'],
  ): Promise<{ vm: Vm; record: VmRecord & { diskBytes: { scratch: number; docker: number } } }> {
    const { vmId, slot, shape } = options;
    const platform = this.#platform;
    const owner = { uid: slot.uid, gid: slot.uid };
    const dir = this.#folders.path(vmId);
    const record: VmRecord = {
      cgroup: cgroupName(vmId),
      uid: slot.uid,
      shape,
      startedIn: dir,
      ...(purpose && { purpose }),
    };
    await this.#folders.create(vmId, record);
    // When one fails the other has ended, too: it would go on making what is being removed.
    const [{ disks: makeDisks, diskMaxMib, memory, complete, statePath, discard, hardware }, cgroupProcs] =
      await settled([
        prepare(this.#folders.jail(vmId), owner),
        this.#cgroups.create(record.cgroup, this.limits(shape, options.cpu)),
      ]);
    const { deviceModel, system } = hardware;
    record.hardware = { deviceModel, ...(system && { system: system.sha256 }) };
    await holdSystemDisk(hardware, dir);
    const state = await open(statePath, 'r');
    clock.lap('prepare');
    const made = makeDisks?.();
    // Waited for below, and also where something else fails first: what is being made would lie in a removed folder.
    const disksSettled = Promise.allSettled([made]);
    let vm: Vm;
    try {
      vm = await Vm.start({
        machine: {
          accelerator: platform.accelerator,
          hardware: hardwareOf(record, dir),
          cpuModel: platform.cpuModel,
          vcpus: shape.vcpus,
          memMib: shape.memMib,
          memory: { path: '/proc/self/fd/3', sharing: 'private' },
          nic: { tap: slot.tap, mac: platform.mac },
        },
        dir,
        jail: { root: this.#folders.jail(vmId), ...owner },
        netns: slot.netnsPath,
        cgroupProcs,
        fileMaxMib: fileMaxMib(diskMaxMib),
        inheritFds: [memory.fd, state.fd],
        onConsole: options.onConsole,
        log: this.#log.child({ vm: vmId }),
      });
    } catch (error) {
      await disksSettled;
      throw error;
    } finally {
      await state.close();
    }
    clock.lap('start');
    try {
      await complete?.(vm.identity.pid);
      await vm.loadState(4, LOAD_DEADLINE_MS).catch(async (error: unknown) => {
        const said = await lastWords(dir);
        // Damaged, or made by another machine after all: the next one is made anew. A VMM that was killed meanwhile
        // says nothing about its template.
        if (said.includes('load of migration failed')) await discard?.();
        throw new Error(`the VM could not be restored: ${said || (error as Error).message}`, {
          cause: error,
        });
      });
      clock.lap('load');
      const disks = await made;
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
      await disksSettled;
      throw error;
    }
  }

  /** Most memory that a VM of this shape may have, its VMM included. */
  memoryMib(shape: Shape): number {
    const emulator = this.#platform.accelerator === 'tcg' ? TCG_CACHE_MIB : 0;
    return shape.memMib + VMM_OVERHEAD_MIB + emulator;
  }

  /** What its cgroup allows. */
  limits(shape: Shape, cpu: BootOptions['cpu']): Parameters<CgroupTree['create']>[1] {
    return {
      cpu: cpu.guaranteed,
      cpuMax: cpu.max,
      memoryMib: this.memoryMib(shape),
      pids: VMM_PIDS + shape.vcpus,
    };
  }
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
