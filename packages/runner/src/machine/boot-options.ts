import type { DiskChain } from '../disk/disk-chain.ts';
import type { GuestSize } from '../template/machine-size.ts';
import type { Vm } from '../vmm/vm.ts';
import type { PresentDisks } from './guest-disks.ts';

/** The part of a network slot that a VMM needs. */
export interface VmSlot {
  /** Unprivileged user and group of this VMM, and of no other on this machine. */
  uid: number;
  netnsPath: string;
  /** Tap inside of it. */
  tap: string;
}

/** What a sandbox has for disks. */
export interface SandboxDisks {
  /** Absolute path of the read-only root image. */
  rootImagePath: string;
  scratchMib: number;
  /** Absent for none; the guest still has a tiny vdc. */
  dockerDataMib?: number | undefined;
  /** What the scratch disk begins with, instead of nothing. */
  from?: DiskChain;
}

export interface BootOptions {
  vmId: string;
  slot: VmSlot;
  shape: GuestSize;
  disks: SandboxDisks;
  /** Guaranteed cores, and cores it may burst to. */
  cpu: { guaranteed: number; max: number };
  onConsole?: ((chunk: Buffer) => void) | undefined;
  signal?: AbortSignal | undefined;
}

/** What a blank VM becomes a sandbox's with. */
export interface AttachOptions extends Omit<BootOptions, 'slot'> {
  /** The scratch disk outlives the VM; one that is kept is attached, and memory that was kept must be gone. */
  persistent?: boolean;
  /** What the blank VM has for disks. */
  present: PresentDisks;
  /** It has warmed up with the sandbox's root image, which stays attached. */
  keepsRoot: boolean;
}

/** A VM whose guest runs. Its agent answers, but has not been configured. */
export interface RunningVm {
  vm: Vm;
  agentSocketPath: string;
  /** Sizes of vdb and vdc, for the agent. */
  diskBytes: { scratch: number; docker: number };
  /** The agent has mounted the root image in its warm-up. */
  hasRootMounted?: boolean;
  /** Milliseconds of each step, for logs and benchmarks. */
  timings: Record<string, number>;
}
