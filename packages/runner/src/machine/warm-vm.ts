import type { MachineSize } from '../template/machine-size.ts';
import type { Hardware } from '../vmm/hardware.ts';
import type { AttachOptions, RunningVm } from './boot-options.ts';
import type { EmptyVm } from './restoring.ts';

/** What a sandbox requires of a waiting VM. */
export interface WantedVm {
  shape: MachineSize;
  /** Size of its largest disk. */
  diskMib: number;
  /** Its root image. */
  image: WarmUpImage;
}

/** A root image on this host. */
export interface WarmUpImage {
  digest: string;
  /** Absolute. */
  path: string;
  /** Of a stacked image: the files that the descriptor at `path` names. */
  parts?: readonly string[] | undefined;
}

/** VMs have the same root disk if this is equal. A persistent sandbox never has a stacked one, as QEMU cannot migrate it. */
export function rootDiskOf({ digest, parts }: WarmUpImage): string {
  return parts === undefined ? digest : `${digest} stacked`;
}

/**
 * The warm-up of each restored VM before it waits: afterwards an emulator has translated the code of a create, and the
 * guest's kernel has the image in its page cache. The guest has a scratch disk for it, which it does not use afterwards.
 */
export interface WarmUp {
  /**
   * The image of VMs that any sandbox may take. The warm-up runs one of its programs, so it must be a trusted one. VMs that
   * warm up with another image are only for sandboxes of that image.
   */
  image: () => Promise<WarmUpImage>;
  scratchMib: number;
  /** @throws when the warm-up fails; the VM is then removed */
  run: (vm: RunningVm) => Promise<void>;
}

/** What a restore of a sandbox's memory requires of a waiting VMM. */
export interface WantedVmm extends Omit<WantedVm, 'image'> {
  hardware: Hardware;
  vmm: string;
}

/** A VM that was taken out of the pool. To be attached or discarded. */
export interface WarmVm {
  /** Its name, and that of its network slot, until `attach`. */
  id: string;
  attach(options: Omit<AttachOptions, 'present' | 'keepsRoot'>): Promise<RunningVm>;
  discard(): Promise<void>;
}

/** A VMM that was taken out of the pool. To be restored into or discarded. */
export interface WarmVmm {
  empty: EmptyVm;
  /** Kills the VMM, and removes all of it. */
  discard(): Promise<void>;
}
