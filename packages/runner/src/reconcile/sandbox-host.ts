import type { Origin, PortMapping, RootSource } from '@releap/contract';
import type { Assignment } from './assignment.ts';
import type { GuestClient } from '../guest/index.ts';
import type { LogFile } from '../logs/log-file.ts';
import type { ImageConfig } from '../image/image-config.ts';
import type { ForkOrigin, LocalState, SnapshotFacts } from '../machine/index.ts';

/** A root image that is not evicted while it is held. */
export interface HeldImage extends Disposable {
  digest: string;
  path: string;
  /** Of a stacked image: the files that the descriptor at `path` names. */
  parts?: readonly string[];
  config: ImageConfig;
}

/** Why a VM has ended by itself. */
export interface Exit {
  reason: string;
  /** How the guest has shut itself down; undefined if it has not. */
  guestEnd: string | undefined;
}

export interface SandboxEvents {
  onExit: (exit: Exit) => void;
  /** The guest's clock is to be set: it was stopped while the VM was blocked on ENOSPC, or a check has found it wrong. */
  onClockOff: () => void;
}

/** Facts about a sandbox that has run before. */
export interface SandboxHistory {
  /** Digest of the root image that its disk is based on. */
  manifest?: string | undefined;
  /** Its previous port mapping; the same host ports are used unless another process has taken them. */
  ports?: PortMapping[] | undefined;
}

/** Addresses of a running sandbox. */
export interface Addresses {
  vm_ip: string;
  host_ip: string;
  port_map: PortMapping[];
}

/** A sandbox whose micro-VM runs and whose agent answers. */
export interface LiveSandbox {
  /** The connection to the agent; reconnects if it was lost. Rejects when the agent does not answer. */
  guest(): Promise<GuestClient>;
  addresses: Addresses;
  console: LogFile;
  entrypoint: LogFile;
  /**
   * Signals the entrypoint and waits `graceMs` for it, ends the other processes, unmounts the disk and ends the VMM, whatever
   * the guest does. `hurry` ends the waiting.
   */
  shutDown(graceMs: number, hurry: AbortSignal): Promise<void>;
  /**
   * Saves memory and devices and ends the VMM. After an error other than GuestLostError the sandbox runs on.
   */
  suspend(): Promise<void>;
  /** Captures it as the source of `child`. It resumes after a few milliseconds, also after an error. */
  fork(child: string): Promise<ForkOrigin>;
  /** Takes a snapshot. @param manifest digest of the root image that the sandbox is based on */
  snapshot(
    id: string,
    kind: 'disk' | 'full',
    manifest: string,
    parentId: string | undefined,
  ): Promise<SnapshotFacts>;
  /**
   * Compacts the layers of its disk, if there are many, while it runs. It may be captured and ended meanwhile.
   * @param alone runs a function exclusively: no other operation on the sandbox runs at the same time
   */
  compactDisk(alone: (work: () => Promise<void>) => Promise<void>): Promise<void>;
  /** Pauses the guest because the host's file system is nearly full. */
  pauseForSpace(isShort: () => boolean): Promise<void>;
  /** Sets the guest's clock. Its processes must not be frozen. `hurry` ends the waiting. */
  setClock(hurry: AbortSignal): Promise<void>;
  /** Whether its virtual processors are stopped because it is idle. */
  readonly isFrozen: boolean;
  /** Whether its agent has not answered several times in a row. */
  readonly isSilent: boolean;
  /** Stops its virtual processors (see `IdleTurn`). @throws ApiError 409 after a thaw of another turn */
  freeze(turn: string): Promise<void>;
  /** Resumes them. @returns whether they were stopped: the guest's clock was, too */
  thaw(turn?: string): Promise<boolean>;
  /** Closes sockets and files of this process; the VMM runs on. */
  close(): Promise<void>;
}

/**
 * Operations of a machine on a sandbox. All calls are idempotent. `destroy` removes everything that any of them created,
 * complete or not; `end` keeps the disk and the suspend image of a persistent sandbox.
 */
export interface SandboxHost {
  /** Whether the root image is on this host, so that a create need not report `building`. */
  hasImage(source: RootSource, manifest?: string): Promise<boolean>;
  /** Whether a sandbox of this size is started without a cold boot. */
  hasTemplate(assignment: Assignment): Promise<boolean>;
  /** By a cold boot, which the starts behind it do not need. */
  makeTemplate(assignment: Assignment, signal: AbortSignal): Promise<void>;
  /**
   * @param manifest digest of the required image, for a disk that is based on it
   * @param origin a snapshot, which holds the image that its disk is based on
   * @param durable in one file that has been fsynced, for a disk that survives a power failure
   */
  acquireImage(
    source: RootSource,
    signal: AbortSignal,
    manifest: string | undefined,
    origin: Origin | undefined,
    durable: boolean,
  ): Promise<HeldImage>;
  /**
   * Has its volumes ready for a boot: mounts their newest content on this host. `end` closes them.
   * @throws with the reason when the content of one cannot be had
   */
  openVolumes(assignment: Assignment, signal: AbortSignal): Promise<void>;
  /** A persistent sandbox boots on its existing disk if there is one. There must be no suspend image. */
  boot(
    assignment: Assignment,
    image: HeldImage,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox>;
  /** Resumes from the suspend image. After an error, `localState` reports whether it is still usable. */
  resume(
    assignment: Assignment,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox>;
  /**
   * Copies the origin of a persistent sandbox, which is then stopped or paused. The source of a fork must be paused.
   */
  initFromOrigin(vmId: string, origin: Origin): Promise<void>;
  /** Captures a persistent sandbox that does not run as a snapshot. @param manifest digest of its root image */
  captureResting(vmId: string, snapshotId: string, manifest: string): Promise<void>;
  /**
   * Ensures that a snapshot is on this host.
   * @param onFetch called before it is fetched from the store, which may take minutes
   */
  fetchSnapshot(snapshotId: string, onFetch: () => Promise<void>, signal: AbortSignal): Promise<void>;
  /** Digest of the root image that a snapshot's disk is based on. @throws when the snapshot is not on this host */
  manifestOf(snapshotId: string): Promise<string>;
  /** Resumes a child that `fork` of its source has captured, with an identity of its own. */
  startForkChild(
    assignment: Assignment,
    origin: ForkOrigin,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox>;
  /** Re-attaches to the VM of a previous runner and resumes its guest if it is paused. @throws when the VM has ended */
  adopt(assignment: Assignment, past: SandboxHistory, events: SandboxEvents): Promise<LiveSandbox>;
  /** Local state of a persistent sandbox that does not run. */
  localState(vmId: string): Promise<LocalState>;
  /** Makes the suspend image durable in the background. */
  makeMemoryDurable(vmId: string): void;
  /** @throws with the reason when the suspend image cannot be resumed on this host */
  checkMemory(vmId: string): Promise<void>;
  /**
   * Discards the suspend image, after flushing the guest's dirty pages to the disk if possible.
   */
  discardMemory(assignment: Assignment, past: SandboxHistory, signal: AbortSignal): Promise<void>;
  end(vmId: string): Promise<void>;
  /** @param isDeleted nothing of the sandbox will be read any more */
  destroy(vmId: string, isDeleted: boolean): Promise<void>;
}
