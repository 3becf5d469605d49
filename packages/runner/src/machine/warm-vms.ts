import { awaitAgent } from '../template/agent-hello.ts';
import type { MachineSize } from '../template/machine-size.ts';
import type { Hardware } from '../vmm/hardware.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';
import type { BootOptions, VmSlot } from './boot-options.ts';
import type { Machines } from './machines.ts';
import type { EmptyVm } from './restoring.ts';
import { rootDiskOf } from './warm-vm.ts';
import type { WantedVm, WantedVmm, WarmUp, WarmUpImage, WarmVm, WarmVmm } from './warm-vm.ts';
import type { Recipe, WaitingVm, WarmPools } from './warm-pool.ts';

/** CPU guarantee of a VM that is made ahead of time: it mostly uses CPU time that sandboxes leave idle. */
const BACKGROUND_CORES = 0.03;

/** A waiting VM, and the root disk that it has mounted (`rootDiskOf`). */
interface RestoredVm extends WaitingVm {
  rootDisk: string | undefined;
}

/** Network slots for waiting VMs; `id` is the name of the VM. */
export interface SlotSource<S extends VmSlot> {
  take(id: string): Promise<S>;
  release(id: string): Promise<void>;
}

export interface WarmVmsOptions<S extends VmSlot> {
  machines: Machines;
  pools: WarmPools;
  slots: SlotSource<S>;
  /** The machine size of which VMs wait also without demand. */
  shape: MachineSize;
  /** Least number of waiting restored VMs of that size; 0 disables waiting VMs. */
  size: number;
  /** Largest disk that can be attached to a waiting VM; a sandbox with a larger one is started directly. */
  diskMaxMib: number;
  warmUp?: WarmUp;
}

/**
 * VMs and VMMs that wait for sandboxes, by machine size:
 * - `template`: VMs that were restored from their template, have warmed up and are paused. A create or start only attaches its
 *   disks. They have no identity, disks or secrets of a tenant. An image that is requested repeatedly has waiting VMs of
 *   its own, which have the image mounted.
 * - `vmm`: VMMs without a state, which have the template's memory, for forks.
 */
export class WarmVms<S extends VmSlot> {
  readonly #options: WarmVmsOptions<S>;
  /** Root disk that VMs for any sandbox warm up with; known after the first of them. */
  #sharedRootDisk: string | undefined;

  constructor(options: WarmVmsOptions<S>) {
    this.#options = options;
    if (options.size === 0) return;
    options.pools.add(this.#templateRecipe(options.shape));
    options.pools.add(this.#vmmRecipe(options.shape));
  }

  /** Takes a suitable waiting VM; undefined when none waits. */
  takeVm({ shape, diskMib, image }: WantedVm): WarmVm | undefined {
    const { machines, warmUp } = this.#options;
    if (!this.#canHave(diskMib)) return undefined;
    const rootDisk = rootDiskOf(image);
    const hasOwn = this.#sharedRootDisk !== undefined && rootDisk !== this.#sharedRootDisk;
    const warm =
      (hasOwn ? this.#take(this.#templateRecipe(shape, image)) : undefined) ??
      this.#take(this.#templateRecipe(shape));
    if (warm === undefined) return undefined;
    const present = warmUp === undefined ? 'placeholders' : 'warm-up';
    const keepsRoot = warm.rootDisk === rootDisk;
    return {
      id: warm.id,
      attach: (options) => machines.blank.attach(warm.vm, warm.id, { ...options, present, keepsRoot }),
      discard: () => this.#discard(warm),
    };
  }

  #take<W extends WaitingVm>(recipe: Recipe<W>): W | undefined {
    return this.#options.pools.take(recipe.name, () => recipe);
  }

  /**
   * Takes a suitable waiting VMM; undefined when none waits.
   * @param wanted.hardware devices that the memory was saved with
   * @param wanted.vmm version of the VMM that the memory was saved with
   */
  takeVmm({ shape, diskMib, hardware, vmm }: WantedVmm): WarmVmm | undefined {
    if (!this.#canHave(diskMib) || !this.#isCurrent(hardware, vmm)) return undefined;
    const empty = this.#take(this.#vmmRecipe(shape));
    return empty && { empty, discard: () => this.#discard(empty) };
  }

  /** Whether new VMMs are of this version and have these devices. */
  #isCurrent({ deviceModel, system, cpu }: Hardware, version: string): boolean {
    const { hardware, vmm } = this.#options.machines.templates.platform;
    if (version !== vmm.version) return false;
    return (
      deviceModel === hardware.deviceModel &&
      system.sha256 === hardware.system.sha256 &&
      cpu?.identity === hardware.cpu?.identity
    );
  }

  #canHave(diskMib: number): boolean {
    return this.#options.size > 0 && diskMib <= this.#options.diskMaxMib;
  }

  /** @param own image of the sandboxes that the VMs are for; any image by default */
  #templateRecipe(shape: MachineSize, own?: WarmUpImage): Recipe<RestoredVm> {
    const { machines, slots, diskMaxMib, size, warmUp } = this.#options;
    return {
      name: own === undefined ? nameOf('template', shape) : `${nameOf('template', shape)} ${rootDiskOf(own)}`,
      least: own === undefined && this.#isDefault(shape) ? size : 0,
      make: async (id, signal) => {
        const image = own ?? (await warmUp?.image());
        const rootDisk = image && rootDiskOf(image);
        if (own === undefined) this.#sharedRootDisk = rootDisk;
        const made = await machines.blank.boot({
          ...this.#background(id, await slots.take(id), shape),
          ...(warmUp &&
            image && {
              disks: { rootImagePath: image.path, rootParts: image.parts, scratchMib: warmUp.scratchMib },
            }),
          diskMaxMib,
          signal,
        });
        try {
          const alive = (): boolean => !made.vm.exited;
          await awaitAgent(made.agentSocketPath, { deadlineMs: DEADLINES_MS.agent, alive, signal });
          await warmUp?.run(made);
          // A waiting VM must use no CPU time.
          await made.vm.stop();
        } catch (error) {
          made.vm.detach();
          throw error;
        }
        return { id, vm: made.vm, rootDisk };
      },
      remove: (id) => this.#remove(id),
    };
  }

  #vmmRecipe(shape: MachineSize): Recipe<EmptyVm> {
    const { machines, slots, diskMaxMib } = this.#options;
    return {
      name: nameOf('vmm', shape),
      least: this.#isDefault(shape) ? 1 : 0,
      make: async (id, signal) =>
        await machines.blank.startEmpty({
          ...this.#background(id, await slots.take(id), shape),
          diskMaxMib,
          signal,
        }),
      remove: (id) => this.#remove(id),
    };
  }

  #background(vmId: string, slot: S, { vcpus, memMib }: MachineSize): Omit<BootOptions, 'disks'> {
    // Memory that the sandbox does not get is reserved when it takes the VM.
    return { vmId, slot, shape: { vcpus, memMib }, cpu: { guaranteed: BACKGROUND_CORES, max: vcpus } };
  }

  #isDefault({ vcpus, memMib }: MachineSize): boolean {
    const { shape } = this.#options;
    return vcpus === shape.vcpus && memMib === shape.memMib;
  }

  async #discard({ id, vm }: WaitingVm): Promise<void> {
    vm.detach();
    await this.#remove(id);
  }

  async #remove(id: string): Promise<void> {
    await this.#options.machines.destroy(id);
    await this.#options.slots.release(id);
  }
}

function nameOf(kind: 'template' | 'vmm', { vcpus, memMib }: MachineSize): string {
  return `${kind} ${vcpus}x${memMib}`;
}
