import { stat } from 'node:fs/promises';
import type { Logger } from 'pino';
import type { CgroupUsage } from '../cgroup/cgroup-files.ts';
import type { CpuCounter } from '../metering/usage-reporter.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { makeDisks } from '../disk/vm-disks.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import { checkChain, createChain, diskMib, forkChain } from '../disk/disk-chain.ts';
import type { DiskSet, VmDisks } from '../disk/vm-disks.ts';
import { memoryOf } from '../template/template-store.ts';
import type { LoadedTemplate, TemplateStore } from '../template/template-store.ts';
import { ageMicros } from '../vmm/process-identity.ts';
import { Vm } from '../vmm/vm.ts';
import type { VmmStore } from '../vmm/vmm-store.ts';
import { MemoryBudget } from '../memory/memory-budget.ts';
import { PageCopiers } from '../memory/page-copier.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import type { BootOptions, RunningVm, SandboxDisks } from './boot-options.ts';
import { Captures } from './captures.ts';
import { CopyAllowance } from './copy-allowance.ts';
import { Digests } from './digests.ts';
import { Flattening } from './flattening.ts';
import { attachDisks } from './guest-disks.ts';
import { PersistentMachines } from './persistent-machines.ts';
import { cgroupName, mibOf, Restoring } from './restoring.ts';
import type { EmptyVm, RestoreSource } from './restoring.ts';
import { settled } from './settled.ts';
import { SnapshotFolders } from './snapshot-folder.ts';
import { Stopwatch } from './stopwatch.ts';
import { VmFolders } from './vm-folder.ts';
import type { VmRecord } from './vm-folder.ts';

export interface MachinesOptions {
  /** Absolute; one folder a VM lies in it. Short: unix sockets are made below it. */
  folder: string;
  /** Absolute; one folder a snapshot lies in it. On the same file system, or each snapshot is a copy. */
  snapshots: string;
  cgroups: CgroupTree;
  templates: TemplateStore;
  vmms: VmmStore;
  emptyDisks: EmptyExt4Store;
  localCopies: LocalCopies;
  log: Logger;
}

/** Makes, finds and removes the micro-VMs of one service. Every call may be repeated after a crash at any line. */
export class Machines {
  readonly templates: TemplateStore;
  /** Those whose disk outlives them. `adopt`, `destroy`, `usage` and `reclaim` are the same for all. */
  readonly persistent: PersistentMachines;
  /** Forks and snapshots. */
  readonly captures: Captures;
  /** Of the disks that captures leave in many layers. */
  readonly flattening: Flattening;
  readonly snapshots: SnapshotFolders;
  /** Of what never changes again. */
  readonly digests: Digests;
  readonly #folders: VmFolders;
  readonly #restoring: Restoring;
  readonly #cgroups: CgroupTree;
  readonly #emptyDisks: EmptyExt4Store;
  readonly #localCopies: LocalCopies;
  readonly #log: Logger;

  constructor(options: MachinesOptions) {
    this.#folders = new VmFolders(options.folder);
    this.#cgroups = options.cgroups;
    this.templates = options.templates;
    this.#emptyDisks = options.emptyDisks;
    this.#localCopies = options.localCopies;
    this.#log = options.log;
    this.#restoring = new Restoring({
      folders: this.#folders,
      cgroups: options.cgroups,
      platform: options.templates.platform,
      log: options.log,
    });
    const copiers = new PageCopiers();
    const allowance = new CopyAllowance(
      this.#cgroups,
      ({ shape }) => this.#restoring.memoryMib(shape),
      options.log,
    );
    const allowCopy = (record: VmRecord, allowed: boolean): Promise<void> => allowance.set(record, allowed);
    const memoryBudget = new MemoryBudget();
    this.snapshots = new SnapshotFolders(options.snapshots);
    this.digests = new Digests({ folders: this.#folders, snapshots: this.snapshots, log: options.log });
    this.captures = new Captures({
      folders: this.#folders,
      snapshots: this.snapshots,
      platform: options.templates.platform,
      localCopies: options.localCopies,
      copiers,
      memoryBudget,
      allowCopy,
      log: options.log,
    });
    this.flattening = new Flattening({
      folders: this.#folders,
      snapshots: this.snapshots,
      log: options.log,
    });
    this.persistent = new PersistentMachines({
      memoryBudget,
      folders: this.#folders,
      templates: options.templates,
      vmms: options.vmms,
      emptyDisks: options.emptyDisks,
      localCopies: options.localCopies,
      restore: async (boot, prepare, purpose, empty) => {
        const clock = new Stopwatch();
        const { vm, record } = await (empty === undefined
          ? this.#restoring.restore(boot, clock, prepare, purpose)
          : this.#restoring.restoreInto(empty, boot, clock, prepare, purpose));
        const { diskBytes } = record;
        return { vm, agentSocketPath: vm.agentSocketPath, diskBytes, timings: clock.laps };
      },
      copiers,
      allowCopy,
      log: options.log,
    });
  }

  /**
   * Restores a VM with its disks and lets its guest run. A shape without a template waits for a cold boot first.
   * @throws when it cannot be; then `destroy` removes whatever there is of it
   */
  async boot(options: BootOptions): Promise<RunningVm> {
    const { vmId, signal } = options;
    const clock = new Stopwatch();
    const template = await this.templates.ensure(options.shape);
    clock.lap('template');
    signal?.throwIfAborted();
    const { disks } = options;
    const vm = await this.#restoring.restore(options, clock, (jail, owner) =>
      Promise.resolve({
        ...this.#fromTemplate(template),
        disks: () => this.#makeDisks(vmId, jail, owner, disks),
        diskMaxMib: Math.max(
          diskMib(disks.scratchMib, false),
          mibOf(disks.from?.bytes ?? 0),
          disks.dockerDataMib ?? 0,
        ),
      }),
    );
    try {
      signal?.throwIfAborted();
      await vm.vm.continue();
      clock.lap('continue');
      this.#log.debug({ vm: vmId, ...clock.laps }, 'VM restored');
      return {
        vm: vm.vm,
        agentSocketPath: vm.vm.agentSocketPath,
        diskBytes: vm.record.diskBytes,
        timings: clock.laps,
      };
    } catch (error) {
      await vm.vm.kill();
      throw error;
    }
  }

  /**
   * Restores a VM without an identity and runs its guest; `attach` makes it a sandbox's. For the pool.
   * @param options.disks what it may use until then, to warm up; nothing by default
   * @param options.diskMaxMib size of the largest disk that it can be given
   */
  async bootBlank(
    options: Omit<BootOptions, 'disks'> & { disks?: SandboxDisks; diskMaxMib: number },
  ): Promise<RunningVm> {
    const template = await this.templates.ensure(options.shape);
    const clock = new Stopwatch();
    const { disks, diskMaxMib } = options;
    const { vm, record } = await this.#restoring.restore(options, clock, (jail, owner) =>
      Promise.resolve({
        ...this.#fromTemplate(template),
        disks: disks && (() => this.#makeDisks(options.vmId, jail, owner, disks, 'warm-up')),
        diskMaxMib,
      }),
    );
    try {
      await vm.continue();
      return {
        vm,
        agentSocketPath: vm.agentSocketPath,
        diskBytes: record.diskBytes,
        timings: clock.laps,
      };
    } catch (error) {
      await vm.kill();
      throw error;
    }
  }

  /**
   * Starts a VMM that waits for memory and state, which it gets when it becomes a sandbox's. For the pool. Its memory holds
   * that of the template already.
   * @param options.diskMaxMib size of the largest disk that it can be given
   */
  async startEmpty(options: Omit<BootOptions, 'disks'> & { diskMaxMib: number }): Promise<EmptyVm> {
    const { origin } = await this.templates.ensure(options.shape);
    const memory = await SealedMemory.begin(options.shape.memMib * 1024 * 1024);
    try {
      // What most sources of forks have begun with, and not written to.
      await memory.fill(origin.path);
      const empty = await this.#restoring.startEmpty(options, memory, options.diskMaxMib);
      const { blocks } = await stat(`/proc/self/fd/${memory.memory.fd}`);
      return { ...empty, base: origin, heldBytes: blocks * 512 };
    } catch (error) {
      await memory.abandon();
      await memory.memory[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Makes a blank VM (`from`, its guest paused) the VM `vmId`: takes its folder over, limits it, attaches the disks and
   * resumes the guest. The order makes a confusion impossible: a folder is taken over once, and a VM without a sandbox's
   * name never has its disks.
   * @param options.persistent the scratch disk outlives the VM; one that is kept is attached, and memory that was kept must be
   *   gone
   * @param options.warmedUp the blank VM has disks that it warmed up with
   * @throws when it cannot be; then `destroy` of both names removes whatever there is
   */
  async attach(
    blank: Vm,
    from: string,
    options: Omit<BootOptions, 'slot' | 'shape'> & { persistent?: boolean; warmedUp: boolean },
  ): Promise<RunningVm> {
    const { vmId, persistent = false, warmedUp } = options;
    const clock = new Stopwatch();
    const record = await this.#folders.load(from);
    if (record === undefined) throw new Error(`there is no blank VM ${from}`);
    await this.#folders.takeOver(from, vmId);
    const vm = blank.movedTo(this.#folders.path(vmId));
    vm.setConsole(options.onConsole);
    const owner = { uid: record.uid, gid: record.uid };
    const jail = this.#folders.jail(vmId);
    const [disks] = await settled([
      persistent
        ? this.persistent.openDisks(vmId, jail, owner, options.disks)
        : this.#makeDisks(vmId, jail, owner, options.disks),
      this.#cgroups.setLimits(record.cgroup, this.#restoring.limits(record.shape, options.cpu)),
    ]);
    clock.lap('prepare');
    options.signal?.throwIfAborted();
    await Promise.all([
      this.#folders.save(vmId, { ...record, diskBytes: disks.bytes }),
      attachDisks(vm, disks, warmedUp ? 'warm-up' : 'placeholders').then(() => clock.lap('attach')),
    ]);
    await vm.continue();
    clock.lap('continue');
    return { vm, agentSocketPath: vm.agentSocketPath, diskBytes: disks.bytes, timings: clock.laps };
  }

  /** Finds a VM that an earlier runner started. @throws when it is gone */
  async adopt(vmId: string, options: { onConsole?: (chunk: Buffer) => void } = {}): Promise<RunningVm> {
    const record = await this.#folders.load(vmId);
    if (record?.process === undefined || record.diskBytes === undefined) {
      throw new Error(`the VM ${vmId} was never completed`);
    }
    const vm = await Vm.adopt({
      identity: record.process,
      dir: this.#folders.path(vmId),
      startedIn: record.startedIn,
      onConsole: options.onConsole,
      log: this.#log.child({ vm: vmId }),
    });
    try {
      await this.#endCaptures(vmId, record, vm);
      // Started by an earlier release, which did not write it down.
      if (record.vmm === undefined) await this.#folders.save(vmId, { ...record, vmm: await vm.version() });
    } catch (error) {
      vm.detach();
      throw error;
    }
    return { vm, agentSocketPath: vm.agentSocketPath, diskBytes: record.diskBytes, timings: {} };
  }

  /** Ends a VM and removes all of it but its logs. Works on whatever a crash has left; a VM that is not there is fine. */
  async destroy(vmId: string): Promise<void> {
    const record = await this.#folders.load(vmId);
    this.captures.forget(vmId);
    // The cgroup was made before the VMM, under a name that follows from the first record.
    await this.#cgroups.destroy(record?.cgroup ?? cgroupName(vmId));
    await this.#folders.remove(vmId);
  }

  /** Ends a VM and removes all of it but its logs and what is kept of a persistent one. Like `destroy` otherwise. */
  async end(vmId: string): Promise<void> {
    this.captures.forget(vmId);
    const record = await this.#folders.load(vmId);
    await this.#cgroups.destroy(record?.cgroup ?? cgroupName(vmId));
    if (!(await this.persistent.hasMemory(vmId))) await this.persistent.dropMemory(vmId);
    await this.#folders.clear(vmId);
  }

  /** What a VM has used, VMM included; undefined when there is none. */
  async usage(vmId: string): Promise<CgroupUsage | undefined> {
    const record = await this.#folders.load(vmId);
    return record === undefined ? undefined : await this.#cgroups.usage(record.cgroup);
  }

  /** The CPU time of the present life of a VM; undefined when it has none. */
  async cpuCounter(vmId: string): Promise<CpuCounter | undefined> {
    const record = await this.#folders.load(vmId);
    if (record?.process === undefined) return undefined;
    const usage = await this.#cgroups.usage(record.cgroup);
    if (usage === undefined) return undefined;
    const { bootId, pid, startTicks } = record.process;
    return {
      incarnation: `${bootId}.${pid}.${startTicks}`,
      cpuMicros: usage.cpuMicros,
      ageMicros: ageMicros(record.process),
    };
  }

  /**
   * Removes every VM that `keep` does not name, and every cgroup that belongs to none. Once, before the first boot.
   * @param park takes over the folder of a VM that has persistent bytes, VMM and cgroup being gone
   */
  async reclaim(keep: ReadonlySet<string>, park?: (vmId: string) => Promise<unknown>): Promise<void> {
    const kept = new Set<string>();
    const others: string[] = [];
    for (const vmId of await this.#folders.list()) {
      const record = keep.has(vmId) ? await this.#folders.load(vmId) : undefined;
      if (record === undefined) others.push(vmId);
      else kept.add(record.cgroup);
    }
    for (const vmId of others) {
      // What is left of a folder that was being taken over: its VM has another name already.
      if (kept.has(cgroupName(vmId))) {
        await this.#folders.remove(vmId);
        continue;
      }
      if (keep.has(vmId)) {
        await this.end(vmId);
        continue;
      }
      if (park !== undefined && (await this.#folders.hasKept(vmId))) {
        this.#log.error({ vm: vmId }, 'no record names the disk of this VM; it goes into quarantine');
        await this.end(vmId);
        await park(vmId);
        continue;
      }
      this.#log.warn({ vm: vmId }, 'removing a VM that belongs to nobody');
      await this.destroy(vmId);
    }
    for (const name of await this.#cgroups.list()) {
      if (!kept.has(name)) await this.#cgroups.destroy(name);
    }
  }

  /** A runner that ended in the middle of a capture has left a copy of the VMM, room for it, and half a file. */
  async #endCaptures(vmId: string, { cgroup, shape }: VmRecord, vm: Vm): Promise<void> {
    await this.#cgroups.kill(cgroup, vm.identity.pid);
    await this.#cgroups.setMemoryLimit(cgroup, this.#restoring.memoryMib(shape)).catch((error: unknown) => {
      this.#log.warn({ err: error, cgroup }, 'the memory limit of a VM could not be set back');
    });
    await this.persistent.dropPartialMemory(vmId);
  }

  /** Disks that end with their VM. */
  async #makeDisks(
    vmId: string,
    jail: string,
    owner: { uid: number; gid: number },
    disks: SandboxDisks,
    set?: DiskSet,
  ): Promise<VmDisks> {
    const folder = this.#folders.disk(vmId);
    const scratch =
      disks.from === undefined
        ? await createChain(this.#emptyDisks, folder, diskMib(disks.scratchMib, false), 'overlay')
        : await forkChain(disks.from, folder);
    if (disks.from !== undefined) await checkChain(scratch);
    const rootImagePath = await this.#localCopies.near(disks.rootImagePath);
    const all = { ...disks, rootImagePath, scratch, persistent: false };
    return await makeDisks(this.#emptyDisks, jail, owner, all, set);
  }

  #fromTemplate(template: LoadedTemplate): Omit<RestoreSource, 'disks' | 'diskMaxMib'> {
    return {
      vmm: this.templates.platform.vmm,
      memory: memoryOf(template),
      statePath: template.statePath,
      hardware: this.templates.platform.hardware,
      discard: () => this.templates.discard(template.key),
    };
  }
}
