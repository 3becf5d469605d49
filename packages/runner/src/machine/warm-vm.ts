import type { MachineSize } from '../template/machine-size.ts';
import type { Hardware } from '../vmm/device-model.ts';
import type { AttachOptions, RunningVm } from './boot-options.ts';
import type { EmptyVm } from './restoring.ts';

/** What a sandbox needs of a waiting VM. */
export interface WantedVm {
  shape: MachineSize;
  /** Size of its largest disk. */
  diskMib: number;
  /** Its root image. */
  image: WarmUpImage;
}

/** A root image that lies on this host. */
export interface WarmUpImage {
  digest: string;
  /** Absolute. */
  path: string;
}

/**
 * What each restored VM does before it waits, so that an emulator has translated the code of a create and a kernel has the
 * image in its caches. Its guest has a scratch disk meanwhile, and uses nothing of that afterwards.
 */
export interface WarmUp {
  /**
   * The image of VMs that may become a sandbox of any tenant, because it is ours: the warm-up runs a program of it. VMs that warm
   * up with another image become sandboxes of that image alone.
   */
  image: () => Promise<WarmUpImage>;
  scratchMib: number;
  /** @throws when it fails; that VM is removed */
  run: (vm: RunningVm) => Promise<void>;
}

/** What is restored from a sandbox's memory needs of a waiting VMM. */
export interface WantedVmm extends Omit<WantedVm, 'image'> {
  hardware: Hardware;
  vmm: string;
}

/** A VM that was taken out of the pool, and belongs to the taker alone. Attach or discard it. */
export interface WarmVm {
  /** Its name until `attach`; its slot is held under this name. */
  id: string;
  attach(options: Omit<AttachOptions, 'present' | 'keepsRoot'>): Promise<RunningVm>;
  discard(): Promise<void>;
}

/** A VMM that was taken out of the pool. `Machines` restores into it, or it is discarded. */
export interface WarmVmm {
  empty: EmptyVm;
  /** Ends the VMM. Its memory is the taker's, and stays. */
  discard(): Promise<void>;
}
