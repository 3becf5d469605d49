import type { DiskChain } from '../disk/disk-chain.ts';
import type { GuestSize } from '../template/machine-size.ts';
import type { ProcessIdentity } from '../vmm/process-identity.ts';
import type { PresentDisks, Vm } from '../vmm/driver.ts';
import type { Share } from '../volume/share-server.ts';

/** The parts of a network slot that a VMM needs. */
export interface VmSlot {
  /** Unprivileged user and group of this VMM alone. */
  uid: number;
  netnsPath: string;
  /** Tap inside of it. */
  tap: string;
}

/** The disks of a sandbox. */
export interface SandboxDisks {
  /** Absolute path of the read-only root image, or of the descriptor of a stacked one. */
  rootImagePath: string;
  /** Absolute paths of the files that the descriptor names. */
  rootParts?: readonly string[] | undefined;
  scratchMib: number;
  /** Absent for none; the guest still has a tiny vdc. */
  dockerDataMib?: number | undefined;
  /** Absolute path of a raw file of that size that is used instead of an empty disk, and outlives the VM. */
  dockerDisk?: string | undefined;
  /** Origin of the scratch disk; an empty file system by default. */
  from?: DiskChain;
}

export interface BootOptions {
  vmId: string;
  slot: VmSlot;
  shape: GuestSize;
  disks: SandboxDisks;
  /** Guaranteed cores, and cores it may burst to. */
  cpu: { guaranteed: number; max: number };
  /** Folders of the host that its guest can mount. With one, the guest boots instead of being restored. */
  shares?: readonly Share[] | undefined;
  onConsole?: ((chunk: Buffer) => void) | undefined;
  /** The kernel of a guest that boots prints what it does. */
  verbose?: boolean | undefined;
  signal?: AbortSignal | undefined;
}

/** How a blank VM becomes that of a sandbox. */
export interface AttachOptions extends Omit<BootOptions, 'slot'> {
  /** The scratch disk outlives the VM: an existing one is attached. There must be no suspend image. */
  persistent?: boolean;
  /** Disks of the blank VM. */
  present: PresentDisks;
  /** The blank VM has warmed up with the sandbox's root image, which stays attached. */
  keepsRoot: boolean;
}

/** The server of a folder that a VM shares. It ends with the VM. */
export interface RunningShare {
  tag: string;
  /** Absent in the record of a VM until it was started. */
  process?: ProcessIdentity;
}

/** A VM whose guest runs, and whose agent has not been configured. */
export interface RunningVm {
  vm: Vm;
  agentSocketPath: string;
  /** Sizes of vdb and vdc, for the agent. */
  diskBytes: { scratch: number; docker: number };
  /** The agent has mounted the root image in its warm-up. */
  hasRootMounted?: boolean;
  /** Servers of the folders that it shares. */
  shares?: readonly RunningShare[] | undefined;
  /** Milliseconds of each step, for logs and benchmarks. */
  timings: Record<string, number>;
}
