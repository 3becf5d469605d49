import type { CgroupTree } from '../cgroup/cgroup-tree.ts';
import { memoryOf } from '../template/template-store.ts';
import type { TemplateStore } from '../template/template-store.ts';
import type { Vm } from '../vmm/driver.ts';
import type { AttachOptions, BootOptions, RunningVm, SandboxDisks } from './boot-options.ts';
import type { EphemeralDisks } from './ephemeral-disks.ts';
import type { PersistentMachines } from './persistent-machines.ts';
import { fromTemplate } from './restoring.ts';
import type { EmptyVm, Restoring } from './restoring.ts';
import { allSettled } from './all-settled.ts';
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

/** VMs and VMMs that are started before they are assigned to a sandbox. `Machines.destroy` removes them. */
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
   * Restores a VM without an identity and runs its guest, for the warm pool; `attach` assigns it to a sandbox.
   * @param options.disks disks for the warm-up; none by default
   * @param options.diskMaxMib size of the largest disk that can be attached
   */
  async boot(
    options: Omit<BootOptions, 'disks'> & { disks?: SandboxDisks; diskMaxMib: number },
  ): Promise<RunningVm> {
    using template = await this.#templates.lease(options.shape, options.signal);
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
        timings: clock.steps,
      };
    } catch (error) {
      await vm.kill();
      throw error;
    }
  }

  /**
   * Starts a VMM that waits for a state, for the warm pool. It has the memory of the template, from which most pages of a fork's
   * source are unchanged.
   * @param options.diskMaxMib size of the largest disk that can be attached
   */
  async startEmpty(options: Omit<BootOptions, 'disks'> & { diskMaxMib: number }): Promise<EmptyVm> {
    using template = await this.#templates.lease(options.shape, options.signal);
    return await this.#restoring.startEmpty(options, memoryOf(template), options.diskMaxMib);
  }

  /**
   * Makes the blank VM `from`, whose guest is paused, the VM `vmId`: renames its folder, sets its limits, attaches the disks
   * and resumes the guest. In this order a VM can be assigned only once, and never has a sandbox's disks under another name.
   * @param options.shape size of the machine, and the memory of it that the sandbox does not get
   * @throws when a step fails; then `destroy` of both names removes what is left
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
    const [disks] = await allSettled([
      persistent
        ? this.#persistent.openDisks(vmId, jail, owner, options.disks)
        : this.#ephemeral.make(vmId, jail, owner, options.disks),
      this.#cgroups.setLimits(
        record.cgroup,
        this.#restoring.limits({ ...record, shape: options.shape }, options.cpu),
      ),
    ]);
    clock.mark('prepare');
    options.signal?.throwIfAborted();
    await Promise.all([
      this.#folders.save(vmId, { ...record, shape: options.shape, diskBytes: disks.bytes }),
      vm.disks.attach(disks, present, keepsRoot).then(() => clock.mark('attach')),
    ]);
    await vm.continue();
    clock.mark('continue');
    return {
      vm,
      agentSocketPath: vm.agentSocketPath,
      diskBytes: disks.bytes,
      hasRootMounted: keepsRoot,
      timings: clock.steps,
    };
  }
}
