import type { MachineSize } from '../template/machine-size.ts';
import type { Hardware } from '../vmm/device-model.ts';
import type { BootOptions, RunningVm } from './boot-options.ts';
import type { EmptyVm } from './restoring.ts';

/** What a sandbox needs of a waiting VM. */
export interface WantedVm {
  shape: MachineSize;
  /** Size of its largest disk. */
  diskMib: number;
}

/** What is restored from a sandbox's memory needs of a waiting VMM. */
export interface WantedVmm extends WantedVm {
  hardware: Hardware;
  vmm: string;
}

/** A VM that was taken out of the pool, and belongs to the taker alone. Attach or discard it. */
export interface WarmVm {
  /** Its name until `attach`; its slot is held under this name. */
  id: string;
  attach(options: Omit<BootOptions, 'slot'> & { persistent?: boolean }): Promise<RunningVm>;
  discard(): Promise<void>;
}

/** A VMM that was taken out of the pool. `Machines` restores into it, or it is discarded. */
export interface WarmVmm {
  empty: EmptyVm;
  /** Ends the VMM. Its memory is the taker's, and stays. */
  discard(): Promise<void>;
}
