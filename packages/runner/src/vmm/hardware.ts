/** How guest code is executed: by hardware virtualisation, or by an emulator that is about ten times slower. */
export type Accelerator = 'kvm' | 'tcg';

/** The read-only file system of Releap that a machine was booted with. The guest's memory refers to its content. */
export interface SystemDisk {
  path: string;
  sha256: string;
}

/** The devices that the guest's kernel found when it booted. Saved memory can only be resumed with the same ones. */
export interface Hardware {
  /** Version of the driver's device model. */
  deviceModel: number;
  system: SystemDisk;
  /** Absent for the processor of the host, and under emulation. */
  cpu?: NamedCpu | undefined;
}

/** A processor of the VMM's list that guests see under KVM, whichever the host's is (`RELEAP_CPU_MODEL`). */
export interface NamedCpu {
  /** Its name, with a version. */
  model: string;
  /** What guests see of it and of the host. Equal on hosts that can resume each other's memory. */
  identity: string;
}

/** `RELEAP_CPU_MODEL` for the processor of the host. */
export const HOST_CPU_MODEL = 'host';

/** The processor that a machine's guest sees. @param hostCpu identity of the host's */
export function cpuIdentity(hostCpu: string, { cpu }: Pick<Hardware, 'cpu'>): string {
  return cpu?.identity ?? hostCpu;
}
