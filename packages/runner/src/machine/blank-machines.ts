import { stat } from 'node:fs/promises';
import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { SealedMemory } from '../memory/sealed-memory.ts';
import type { TemplateStore } from '../template/template-store.ts';
import type { Vm } from '../vmm/vm.ts';
import type { AttachOptions, BootOptions, RunningVm, SandboxDisks } from './boot-options.ts';
import type { EphemeralDisks } from './ephemeral-disks.ts';
import { attachDisks } from './guest-disks.ts';
import type { PersistentMachines } from './persistent-machines.ts';
import { fromTemplate } from './restoring.ts';
import type { EmptyVm, Restoring } from './restoring.ts';
import { settled } from './settled.ts';
import { Stopwatch } from './stopwatch.ts';
import type { VmFolders } from './vm-folder.ts';

export interface BlankMachinesOptions {
  folders: VmFolders;
  cgroups: CgroupTree;
  templates: TemplateStore;
  restoring: Restoring;
  ephemeral: EphemeralDisks;
  persistent: PersistentMachines;
}

/** VMs and VMMs that are made before it is known for which sandbox. `Machines.destroy` removes them. */
export class BlankMachines {
  readonly #folders: VmFolders;
  readonly #cgroups: CgroupTree;
  readonly #templates: TemplateStore;
  readonly #restoring: Restoring;
  readonly #ephemeral: EphemeralDisks;
  readonly #persistent: PersistentMachines;

  constructor(options: BlankMachinesOptions) {
    this.#folders = options.folders;
    this.#cgroups = options.cgroups;
    this.#templates = options.templates;
    this.#restoring = options.restoring;
    this.#ephemeral = options.ephemeral;
    this.#persistent = options.persistent;
  }

  /**
   * Restores a VM without an identity and runs its guest; `attach` makes it a sandbox's. For the pool.
   * @param options.disks what it may use until then, to warm up; nothing by default
   * @param options.diskMaxMib size of the largest disk that it can be given
   */
  async boot(
    options: Omit<BootOptions, 'disks'> & { disks?: SandboxDisks; diskMaxMib: number },
  ): Promise<RunningVm> {
    const template = await this.#templates.ensure(options.shape);
    const clock = new Stopwatch();
    const { disks, diskMaxMib } = options;
    const { vm, record } = await this.#restoring.restore(options, clock, (jail, owner) =>
      Promise.resolve({
        ...fromTemplate(this.#templates, template),
        disks: disks && (() => this.#ephemeral.make(options.vmId, jail, owner, disks, 'warm-up')),
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
    const { origin } = await this.#templates.ensure(options.shape);
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
   * @param options.shape of that machine, with what the sandbox does not get of it
   * @throws when it cannot be; then `destroy` of both names removes whatever there is
   */
  async attach(blank: Vm, from: string, options: AttachOptions): Promise<RunningVm> {
    const { vmId, persistent = false, present, keepsRoot } = options;
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
        ? this.#persistent.openDisks(vmId, jail, owner, options.disks)
        : this.#ephemeral.make(vmId, jail, owner, options.disks),
      this.#cgroups.setLimits(record.cgroup, this.#restoring.limits(options.shape, options.cpu)),
    ]);
    clock.lap('prepare');
    options.signal?.throwIfAborted();
    await Promise.all([
      this.#folders.save(vmId, { ...record, shape: options.shape, diskBytes: disks.bytes }),
      attachDisks(vm, disks, present, keepsRoot).then(() => clock.lap('attach')),
    ]);
    await vm.continue();
    clock.lap('continue');
    return {
      vm,
      agentSocketPath: vm.agentSocketPath,
      diskBytes: disks.bytes,
      hasRootMounted: keepsRoot,
      timings: clock.laps,
    };
  }
}
