/**
 * What the runner needs of a VMM: all that it knows of the one that is used. The only driver is QEMU's (`vmm/qemu`), which
 * `machine/open-machines.ts` alone imports.
 *
 * Some work is done on the VMM's process from outside, by the runner and by hostd, and is no part of the driver. So for any driver:
 * - a VM is one process, which outlives the runner and is adopted by the next one;
 * - it is started in a jail, unprivileged, and opens files of tenants only there (`vmm/jail.ts`);
 * - it has the file with the initial memory of its guest open as `MEMORY_DESCRIPTOR` and mapped privately, so that
 *   the anonymous pages of the mapping are what the guest has written (`memory/`);
 * - layers of disks are qcow2 files, whose manifests and folders the driver does not know (`disk/`).
 *
 * A VMM may have been taken over by its guest. What it says is bounded and checked by the driver, and every call ends: all of them
 * reject when the VMM refuses, does not respond within a deadline (`DEADLINES_MS`), or has ended.
 */
import type { Logger } from 'pino';
import type { PlacedLayer, VmDisks } from '../disk/vm-disks.ts';
import type { Accelerator, Hardware, NamedCpu } from './hardware.ts';
import type { BootResult, TrialBoot } from './kvm-trial.ts';
import type { ProcessIdentity } from './process-identity.ts';

/** Descriptor of a VMM that has its guest's memory file open. */
export const MEMORY_DESCRIPTOR = 3;

/** A build of the VMM. */
export interface Vmm {
  /** Of three numbers, e.g. `10.0.2`. */
  version: string;
  /** Folder with all of its files; absolute. */
  folder: string;
}

/** The builds that this host has. New VMs run with the newest one; saved memory needs the one that saved it, or a compatible one. */
export interface VmmVersions {
  readonly newest: Vmm;
  readonly versions: readonly string[];
  /** The build that loads the states that `version` has saved; undefined when it is not on this host. */
  forState(version: string): Vmm | undefined;
}

export interface VmmDriver {
  readonly vmms: VmmVersions;
  /** Of a build, for comparison by control. Builds of other drivers have other names. */
  nameOf(version: string): string;
  /** The device model of new machines. Released ones never change. */
  readonly deviceModel: number;
  /** Whether machines with that device model can be started. */
  isKnownDeviceModel(version: number): boolean;
  /** Name of a device model's kind of machine, for records. @throws when this version does not know the model */
  machineType(deviceModel: number): string;
  /** How a guest's processor is configured; states that were saved with different values cannot be exchanged. */
  cpuModel(accelerator: Accelerator, hardware: Pick<Hardware, 'deviceModel' | 'cpu'>): string;
  /** Command line of the kernel of a guest that boots. */
  kernelAppend(guest: GuestBoot): string;
  /** A processor by its name, under KVM. @throws Error for operators, when guests of this host cannot have it */
  namedCpu(name: string, log: Logger): Promise<NamedCpu>;
  /** Boots a guest under KVM until its first process runs, and ends it: the first step of a trial. Never rejects for the guest. */
  bootUnderKvm(options: TrialBoot): Promise<BootResult>;
  /**
   * Starts a VMM and waits until it can be controlled. The guest boots (`boot`), or the VMM waits for `loadState`.
   * @throws Error with the VMM's last output when it does not start; its process has ended then
   */
  start(options: StartOptions): Promise<Vm>;
  /** Adopts a VMM that an earlier runner started. @throws when exactly that process has ended or does not respond */
  adopt(options: AdoptOptions): Promise<Vm>;
}

/** What the command line of a guest's kernel depends on. */
export interface GuestBoot {
  accelerator: Accelerator;
  /** Frequency of the host's time-stamp counter, where it is constant and known. */
  tscKhz: number | undefined;
  hardware: Pick<Hardware, 'deviceModel'>;
  /** `address/prefix,gateway` that the agent configures. */
  guestNet: string;
  /** It has folders of the host, and is not booted to be a template. */
  sharesFolders: boolean;
  /** Whether its kernel prints from the start; by default that of a template does. */
  verbose?: boolean | undefined;
}

export interface MachineSpec {
  accelerator: Accelerator;
  /** The devices, and the file of the system disk. */
  hardware: Hardware;
  vcpus: number;
  memMib: number;
  /**
   * `shared` (MAP_SHARED) while a template is made: the guest's writes go to the file. `private`: copy-on-write. `own`: memory
   * without a file, which servers of shared folders map too.
   */
  sharing: 'shared' | 'private' | 'own';
  /** Of the guest's network device. */
  mac: string;
}

export interface StartOptions {
  vmm: Vmm;
  machine: MachineSpec;
  /** Kernel to boot. Without one the VMM waits for a saved state. With `own` memory the guest is paused before its first instruction. */
  boot?: { kernel: string; initramfs: string; append: string };
  /** Open file of the guest's memory; writable when it is mapped shared. None if the VMM makes it (`sharing: 'own'`). */
  memoryFd?: number;
  /** Open file of the saved state. */
  stateFd?: number;
  /** Folders of the host that the guest can mount: tags, and the sockets of their servers. */
  shares?: readonly { tag: string; socket: string }[] | undefined;
  /** An existing folder that only root can access, for sockets and the VMM's output. */
  dir: string;
  jail: Jail & { gid: number };
  /** Path of the network namespace, or `new` for an empty one that ends with the process; and its tap. */
  netns: string;
  tap: string;
  /** `cgroup.procs` files to join before the VMM is executed. */
  cgroupProcs: string[];
  /** Largest file that the VMM may write, in MiB. */
  fileMaxMib: number;
  onConsole?: ((chunk: Buffer) => void) | undefined;
  /** Ends the wait for the VMM, which is then killed. */
  signal?: AbortSignal | undefined;
  explainKill?: ExplainKill | undefined;
  log: Logger;
}

/** Asked when a VMM was killed: the reason for users, where the kernel did it. */
export type ExplainKill = () => string | undefined;

export interface AdoptOptions {
  identity: ProcessIdentity;
  dir: string;
  /** Folder that it was started in; another one if the folder was renamed since. */
  startedIn: string;
  onConsole?: ((chunk: Buffer) => void) | undefined;
  explainKill?: ExplainKill | undefined;
  log: Logger;
}

/** Root folder of a VMM, and its user and group. */
export interface Jail {
  root: string;
  uid: number;
}

/** The VMM has refused a saved state, which is damaged or of another machine. */
export class StateRefusedError extends Error {}

/** A VMM process, and the connections to it. The process outlives this object, unless it is killed. */
export interface Vm {
  readonly identity: ProcessIdentity;
  /** Folder of its sockets and its output. */
  readonly dir: string;
  /** Unix socket of the guest agent's port. */
  readonly agentSocketPath: string;
  readonly disks: BlockDevices;
  /** Its folder was renamed. */
  movedTo(dir: string): this;

  /** Pauses the guest's processors; what it has written to its disks is flushed to their files. */
  stop(): Promise<void>;
  /** Resumes the guest. */
  continue(): Promise<void>;
  /** Whether this object has stopped the guest, or is about to. */
  readonly isStopped: boolean;
  /** Whether the guest's processors run, asked from the VMM. */
  isRunning(): Promise<boolean>;

  /**
   * Loads the state of the devices from `StartOptions.stateFd`; the memory is complete already. The guest is paused afterwards.
   * @throws StateRefusedError
   */
  loadState(): Promise<void>;
  /** Prepares a save of the devices' state, while the guest runs. */
  prepareState(jail: Jail): Promise<DeviceState>;

  /** Sets the listener for the guest's console output. */
  setConsole(listener: ((chunk: Buffer) => void) | undefined): void;
  readonly exited: boolean;
  /** How the guest has shut its machine down, as text for users; undefined if it has not. */
  readonly guestEnd: string | undefined;
  /** Calls back once, with a reason for users, when the VMM has ended; not after `detach` or `kill`. */
  onExit(listener: (reason: string) => void): void;
  /** Resolves when the VMM has ended by itself. @throws when it has not within `deadlineMs` */
  ended(deadlineMs: number): Promise<void>;

  /** Pauses the guest while the host's disk is short of space. It is resumed automatically. */
  pauseForSpace(isShort: () => boolean): Promise<void>;
  /** Whether the guest cannot respond because it is blocked on ENOSPC. */
  readonly waitsForSpace: boolean;
  /** The same, asked from the VMM. The guest is resumed automatically when there is space. */
  isBlockedOnSpace(): Promise<boolean>;
  /** Calls back whenever a guest that was blocked on ENOSPC runs again. Its clock was stopped meanwhile. */
  onUnblocked(listener: () => void): void;

  /** Kills a VMM whose guest cannot continue. Its end is reported with this reason. */
  fail(reason: string): Promise<void>;
  /** Kills a VMM whose guest lacks something that it had. Its disk is intact: this counts as a shut-down by the guest. */
  endGuest(reason: string): Promise<void>;
  /** Asks the VMM to end, which closes its disks cleanly, and kills it if it does not. */
  quit(): Promise<void>;
  /** Kills the VMM, and resolves when the process has ended. */
  kill(): Promise<void>;
  /** Closes the connections; the VMM continues to run. */
  detach(): void;
}

/** The state of the devices of one guest, that is about to be saved. */
export interface DeviceState extends AsyncDisposable {
  /** The guest must be paused, and may be resumed right after it, also after an error. */
  save(): Promise<void>;
  /** Copies what was saved to `target`, which must not exist. @returns its size in bytes */
  copyTo(target: string): Promise<number>;
}

/** The disks that are attached to a VM before those of its sandbox. */
export type PresentDisks = 'placeholders' | 'warm-up';

/** A layer to be opened. `persistent`: flushes of a guest that writes to it must be durable. */
export type LayerToOpen = PlacedLayer & { persistent: boolean };

/** A part of the scratch disk as a VMM has it open. To be passed back as it is, and valid until the disk is changed. */
export interface OpenLayer {
  /** Name of the layer, which is the VMM's word for it; undefined for what is no layer. */
  readonly layer: string | undefined;
}

/** The disks of a running VMM. Calls that change them must not overlap. */
export interface BlockDevices {
  /**
   * Attaches disks to the devices of a paused guest that uses none of its present disks. The VMM opens the files itself, jailed and
   * without privileges.
   * @param keepsRoot the root image stays attached: it is the same one, and the guest has it mounted
   */
  attach(disks: VmDisks, present: PresentDisks, keepsRoot?: boolean): Promise<void>;
  /** The scratch disk: its layers from the top, and the empty disk below them. */
  openLayers(): Promise<OpenLayer[]>;
  /**
   * Opens an empty layer for the scratch disk. One with this name that an earlier call has opened, and that was not put on top, is closed.
   * @returns puts it on top: what the guest has written before is below it
   */
  prepareLayer(layer: LayerToOpen): Promise<{ putOnTop(): Promise<void> }>;
  /**
   * Puts a layer that has the same content in place of those between `above` and `below`. The guest may run.
   * @throws when the VMM refuses; the disk is unchanged
   */
  replaceLayers(layer: LayerToOpen, above: OpenLayer, below: OpenLayer): Promise<void>;
  /** Closes layers that are not part of the disk any more, the highest first. */
  closeLayers(layers: readonly OpenLayer[]): Promise<void>;
}
