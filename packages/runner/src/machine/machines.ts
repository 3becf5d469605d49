import type { Logger } from 'pino';
import type { CgroupUsage } from '../cgroup/cgroup-files.ts';
import type { CounterSource } from '../metering/counter-reader.ts';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { OomKills } from '../cgroup/oom-kills.ts';
import type { EmptyExt4Store } from '../disk/empty-ext4.ts';
import { diskMib } from '../disk/disk-chain.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import type { GuestSize, Platform } from '../template/machine-size.ts';
import type { TemplateStore } from '../template/template-store.ts';
import type { Vm } from '../vmm/driver.ts';
import { MemoryBudget } from '../memory/memory-budget.ts';
import { BlankMachines } from './blank-machines.ts';
import { Booting } from './booting.ts';
import type { BootOptions, RunningVm } from './boot-options.ts';
import { Captures } from './captures.ts';
import { Digests } from './digests.ts';
import { EphemeralDisks } from './ephemeral-disks.ts';
import { LayerCompaction } from './layer-compaction.ts';
import { PersistentMachines } from './persistent-machines.ts';
import { cgroupName, fromTemplate, mibOf, Restoring } from './restoring.ts';
import type { RestoredVm, RestoreSource } from './restoring.ts';
import { shareCgroup, ShareServers } from './share-servers.ts';
import { SnapshotFolders } from './snapshot-folder.ts';
import { Stopwatch } from './stopwatch.ts';
import { VmFolders } from './vm-folder.ts';
import type { VmRecord } from './vm-folder.ts';

export interface MachinesOptions {
  /** Absolute; it has a folder for each VM. Must be short, as it is part of the paths of unix sockets. */
  folder: string;
  /** Absolute; it has a folder for each snapshot. On another file system each snapshot is a copy. */
  snapshots: string;
  cgroups: CgroupTree;
  templates: TemplateStore;
  emptyDisks: EmptyExt4Store;
  localCopies: LocalCopies;
  /** Of VMs that share folders of the host. */
  sharingPlatform: () => Promise<Platform>;
  /** Folder with the unpacked virtiofsd, absolute. */
  virtiofsd: string;
  log: Logger;
}

/** Starts, adopts and removes the micro-VMs of one service. Every call may be repeated after a crash at any point. */
export class Machines {
  readonly templates: TemplateStore;
  /** VMs of persistent sandboxes. `adopt`, `destroy`, `usage` and `reclaim` are the same for all VMs. */
  readonly persistent: PersistentMachines;
  /** For the warm pools. */
  readonly blank: BlankMachines;
  /** Forks and snapshots. */
  readonly captures: Captures;
  readonly compaction: LayerCompaction;
  readonly snapshots: SnapshotFolders;
  readonly memoryBudget = new MemoryBudget();
  readonly digests: Digests;
  readonly oomKills: OomKills;
  readonly #folders: VmFolders;
  readonly #restoring: Restoring;
  readonly #booting: Booting;
  readonly #shares: ShareServers;
  readonly #cgroups: CgroupTree;
  readonly #ephemeral: EphemeralDisks;
  readonly #log: Logger;

  constructor(options: MachinesOptions) {
    this.#folders = new VmFolders(options.folder);
    this.#cgroups = options.cgroups;
    this.oomKills = new OomKills(options.cgroups);
    this.templates = options.templates;
    this.#ephemeral = new EphemeralDisks({ ...options, folders: this.#folders });
    this.#log = options.log;
    this.#restoring = new Restoring({
      folders: this.#folders,
      cgroups: options.cgroups,
      oomKills: this.oomKills,
      platform: options.templates.platform,
      log: options.log,
    });
    this.#shares = new ShareServers(options.cgroups, options.virtiofsd);
    this.#booting = new Booting({
      folders: this.#folders,
      cgroups: options.cgroups,
      oomKills: this.oomKills,
      platform: options.sharingPlatform,
      servers: this.#shares,
      limits: (facts, cpu) => this.#restoring.limits(facts, cpu),
      log: options.log,
    });
    this.snapshots = new SnapshotFolders(options.snapshots);
    this.digests = new Digests({ folders: this.#folders, snapshots: this.snapshots, log: options.log });
    this.captures = new Captures({
      folders: this.#folders,
      snapshots: this.snapshots,
      platform: options.templates.platform,
      localCopies: options.localCopies,
      memoryBudget: this.memoryBudget,
      log: options.log,
    });
    this.compaction = new LayerCompaction({
      folders: this.#folders,
      snapshots: this.snapshots,
      log: options.log,
    });
    this.persistent = new PersistentMachines({
      folders: this.#folders,
      templates: options.templates,
      emptyDisks: options.emptyDisks,
      localCopies: options.localCopies,
      restore: async (boot, prepare, purpose) => {
        const clock = new Stopwatch();
        const { vm, record } = await this.#restoring.restore(boot, clock, prepare, purpose);
        return runningVm(vm, record, clock.steps);
      },
      restoreInto: async (empty, boot, prepare) => {
        const clock = new Stopwatch();
        const { vm, record } = await this.#restoring.restoreInto(empty, boot, clock, prepare);
        return runningVm(vm, record, clock.steps);
      },
      bootWithShares: async (boot, prepare) => {
        const clock = new Stopwatch();
        const { vm, record } = await this.#booting.boot(boot, clock, prepare);
        return runningVm(vm, record, clock.steps);
      },
      log: options.log,
    });
    this.blank = new BlankMachines({
      folders: this.#folders,
      cgroups: this.#cgroups,
      templates: this.templates,
      restoring: this.#restoring,
      ephemeral: this.#ephemeral,
      persistent: this.persistent,
    });
  }

  /**
   * Restores a VM with its disks and resumes its guest. A machine size without a template needs a cold boot first, and a VM
   * that shares folders always boots.
   * @throws when a step fails; then `destroy` removes what is left
   */
  async boot(options: BootOptions): Promise<RunningVm> {
    const { vmId, signal, disks, shares = [] } = options;
    const clock = new Stopwatch();
    const prepared = (jail: string, owner: { uid: number; gid: number }) => ({
      disks: () => this.#ephemeral.make(vmId, jail, owner, disks),
      diskMaxMib: Math.max(
        diskMib(disks.scratchMib, false),
        mibOf(disks.from?.bytes ?? 0),
        disks.dockerDataMib ?? 0,
      ),
    });
    const { vm, record } = await (shares.length > 0
      ? this.#booting.boot({ ...options, shares }, clock, async (...place) => prepared(...place))
      : this.#restoreTemplate(options, clock, prepared));
    try {
      signal?.throwIfAborted();
      await vm.continue();
      clock.mark('continue');
      this.#log.debug({ vm: vmId, ...clock.steps }, 'VM restored');
      return runningVm(vm, record, clock.steps);
    } catch (error) {
      await vm.kill();
      throw error;
    }
  }

  async #restoreTemplate(
    options: BootOptions,
    clock: Stopwatch,
    prepared: (
      jail: string,
      owner: { uid: number; gid: number },
    ) => Pick<RestoreSource, 'disks' | 'diskMaxMib'>,
  ): Promise<RestoredVm> {
    using template = await this.templates.lease(options.shape, options.signal);
    clock.mark('template');
    options.signal?.throwIfAborted();
    return await this.#restoring.restore(options, clock, (jail, owner) =>
      Promise.resolve({ ...fromTemplate(this.templates, template), ...prepared(jail, owner) }),
    );
  }

  /** Adopts a VM that an earlier runner started. @throws when it has ended */
  async adopt(vmId: string, options: { onConsole?: (chunk: Buffer) => void } = {}): Promise<RunningVm> {
    const record = await this.#folders.load(vmId);
    if (record?.process === undefined || record.diskBytes === undefined) {
      throw new Error(`the VM ${vmId} was never completed`);
    }
    const vm = await this.templates.platform.driver.adopt({
      identity: record.process,
      dir: this.#folders.path(vmId),
      startedIn: record.startedIn,
      onConsole: options.onConsole,
      explainKill: this.oomKills.watch(record.cgroup),
      log: this.#log.child({ vm: vmId }),
    });
    try {
      await this.#endCaptures(vmId, record);
    } catch (error) {
      vm.detach();
      throw error;
    }
    return runningVm(vm, { ...record, diskBytes: record.diskBytes }, {});
  }

  /** Kills a VM and removes all of it but its logs. Idempotent; also removes what a crash has left. */
  async destroy(vmId: string): Promise<void> {
    const record = await this.#folders.load(vmId);
    this.captures.forget(vmId);
    // The cgroup exists before the VMM, under a name that is derived from the id.
    await this.#endProcesses(vmId, record);
    await this.persistent.stopFlushing(vmId);
    await this.#folders.remove(vmId);
  }

  /** Like `destroy`, but the disk and the suspend image of a persistent sandbox stay. */
  async end(vmId: string): Promise<void> {
    this.captures.forget(vmId);
    await this.#endProcesses(vmId, await this.#folders.load(vmId));
    if (!(await this.persistent.hasMemory(vmId))) await this.persistent.dropMemory(vmId);
    await this.#folders.clear(vmId);
  }

  /** Ends the VMM, and then what serves it. */
  async #endProcesses(vmId: string, record: VmRecord | undefined): Promise<void> {
    await this.#cgroups.destroy(record?.cgroup ?? cgroupName(vmId));
    if (record === undefined || record.shares !== undefined) await this.#shares.destroy(vmId);
  }

  /** See `Restoring.writtenMaxMib`. */
  writtenMaxMib(shape: GuestSize, sharesFolders: boolean): number | undefined {
    return this.#restoring.writtenMaxMib(shape, sharesFolders);
  }

  /** Resource usage of a VM, VMM included; undefined when there is none. */
  async usage(vmId: string): Promise<CgroupUsage | undefined> {
    const record = await this.#folders.load(vmId);
    return record === undefined ? undefined : this.#cgroups.usage(record.cgroup);
  }

  /** Where the counters of a VM are, but for its network; undefined when it has no VMM. */
  async counterSource(vmId: string): Promise<Omit<CounterSource, 'networkInterface'> | undefined> {
    const record = await this.#folders.load(vmId);
    if (record?.process === undefined) return undefined;
    return { cgroup: record.cgroup, process: record.process, jail: this.#folders.jail(vmId) };
  }

  /**
   * Removes every VM that `keep` does not name, and every cgroup of no VM. To be called once, before the first boot.
   * @param park moves the folder of a VM with persistent files into quarantine, after its VMM and cgroup were removed
   */
  async reclaim(keep: ReadonlySet<string>, park?: (vmId: string) => Promise<unknown>): Promise<void> {
    const used = new Set<string>();
    const others: string[] = [];
    for (const vmId of await this.#folders.list()) {
      const record = keep.has(vmId) ? await this.#folders.load(vmId) : undefined;
      if (record === undefined) others.push(vmId);
      else {
        used.add(record.cgroup);
        for (const index of record.shares?.keys() ?? []) used.add(shareCgroup(vmId, index));
      }
    }
    for (const vmId of others) {
      // Left from a rename that was interrupted: the VM has its new name already.
      if (used.has(cgroupName(vmId))) {
        await this.#folders.remove(vmId);
        continue;
      }
      if (keep.has(vmId)) {
        await this.end(vmId);
        continue;
      }
      if (park !== undefined && (await this.#folders.hasPersistentFiles(vmId))) {
        this.#log.error({ vm: vmId }, 'no record names the disk of this VM; it goes into quarantine');
        await this.end(vmId);
        await park(vmId);
        continue;
      }
      this.#log.warn({ vm: vmId }, 'removing a VM that no record names');
      await this.destroy(vmId);
    }
    for (const name of await this.#cgroups.list()) {
      if (!used.has(name)) await this.#cgroups.destroy(name);
    }
    await this.templates.reclaim();
  }

  /** Removes what a runner that ended during a capture has left: a partial file, and of an earlier release a raised memory limit. */
  async #endCaptures(vmId: string, record: VmRecord): Promise<void> {
    const { cgroup } = record;
    await this.#cgroups.setMemoryLimit(cgroup, this.#restoring.memoryMib(record)).catch((error: unknown) => {
      this.#log.warn({ err: error, cgroup }, 'the memory limit of a VM could not be lowered');
    });
    await this.persistent.dropPartialMemory(vmId);
  }
}

function runningVm(
  vm: Vm,
  { diskBytes, shares }: RestoredVm['record'],
  timings: RunningVm['timings'],
): RunningVm {
  return {
    vm,
    agentSocketPath: vm.agentSocketPath,
    diskBytes,
    ...(shares && { shares }),
    timings,
  };
}
