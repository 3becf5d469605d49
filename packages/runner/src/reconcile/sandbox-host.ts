import type { Origin, PortMapping, RootSource } from '@releap/contract';
import type { Assignment } from './assignment.ts';
import type { GuestClient } from '../guest/index.ts';
import type { LogFile } from '../logs/log-file.ts';
import type { ImageConfig } from '../image/image-config.ts';
import type { ForkOrigin, LocalState, SnapshotFacts } from '../machine/index.ts';

/** A root image that stays on this machine while it is held. */
export interface HeldImage extends Disposable {
  digest: string;
  path: string;
  config: ImageConfig;
}

/** Why a VM has ended without being told to. */
export interface Exit {
  reason: string;
  /** How the guest has shut itself down; undefined if it has not. */
  guestEnd: string | undefined;
}

export interface SandboxEvents {
  onExit: (exit: Exit) => void;
  /** It was blocked on ENOSPC, and continues. */
  onUnblocked: () => void;
}

/** What is known of a sandbox that has run before. */
export interface SandboxHistory {
  /** Digest of the root image that its disk lies on. */
  manifest?: string | undefined;
  /** Its ports are published where they were, unless another process has taken them. */
  ports?: PortMapping[] | undefined;
}

/** Where a running sandbox can be reached. */
export interface Addresses {
  vm_ip: string;
  host_ip: string;
  port_map: PortMapping[];
}

/** A sandbox whose micro-VM runs and whose agent answers. */
export interface LiveSandbox {
  /** The agent's connection; made again when it was lost. Rejects when the agent does not answer. */
  guest(): Promise<GuestClient>;
  addresses: Addresses;
  console: LogFile;
  entrypoint: LogFile;
  /**
   * Ends the processes, the entrypoint being asked first and given `graceMs`, brings the disk in order and ends the
   * VMM; it is gone afterwards, whatever the guest does. `hurry` ends the waiting.
   */
  shutDown(graceMs: number, hurry: AbortSignal): Promise<void>;
  /**
   * Saves memory and devices; the VMM has ended afterwards. After an error other than GuestLostError the sandbox continues.
   */
  suspend(): Promise<void>;
  /** Captures it as the source of `child`. It continues after a few milliseconds, whatever the outcome. */
  fork(child: string): Promise<ForkOrigin>;
  /** Takes it for later. @param manifest digest of the root image that it runs on */
  snapshot(
    id: string,
    kind: 'disk' | 'full',
    manifest: string,
    parentId: string | undefined,
  ): Promise<SnapshotFacts>;
  /**
   * Compacts the layers of its disk, if there are many. It continues to run, and may be captured and ended meanwhile.
   * @param alone runs a function exclusively: no other operation on the sandbox runs meanwhile
   */
  compactDisk(alone: (work: () => Promise<void>) => Promise<void>): Promise<void>;
  /** Pauses its guest while the host's disk is short of space. */
  pauseForSpace(isShort: () => boolean): Promise<void>;
  /** Sets its clock to that of the host. Its processes must not be frozen. `hurry` ends the waiting. */
  setClock(hurry: AbortSignal): Promise<void>;
  /** Closes sockets and files on this side; the VMM is not touched. */
  close(): Promise<void>;
}

/**
 * What a machine can do for a sandbox. Every call may be repeated, and `destroy` removes whatever any of them
 * left, finished or not; `end` does, too, but the disk and the suspend image of a persistent sandbox stay.
 */
export interface SandboxHost {
  /** Whether the root image lies here already, so that a create need not say `building`. */
  hasImage(source: RootSource, manifest?: string): Promise<boolean>;
  /**
   * @param manifest the one image that will do, for a disk that lies on it
   * @param origin a snapshot holds the image that its disk lies on
   */
  acquireImage(
    source: RootSource,
    signal: AbortSignal,
    manifest?: string,
    origin?: Origin,
  ): Promise<HeldImage>;
  /** A persistent sandbox boots on its existing disk if there is one. There must be no suspend image. */
  boot(
    assignment: Assignment,
    image: HeldImage,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox>;
  /** Resumes from the suspend image. After an error, `localState` tells whether that is still usable. */
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
  /**
   * Makes sure that a snapshot is here.
   * @param onFetch called before it is fetched from the store, which may take long
   */
  fetchSnapshot(snapshotId: string, onFetch: () => Promise<void>, signal: AbortSignal): Promise<void>;
  /** Digest of the root image that a snapshot's disk lies on. @throws when the snapshot is not here */
  manifestOf(snapshotId: string): Promise<string>;
  /** Resumes a child that `fork` of its source has captured, with its own identity. */
  startForkChild(
    assignment: Assignment,
    origin: ForkOrigin,
    past: SandboxHistory,
    events: SandboxEvents,
    signal: AbortSignal,
  ): Promise<LiveSandbox>;
  /** Re-attaches to the VM of a previous runner and resumes its guest if it is paused; throws when it is gone. */
  adopt(assignment: Assignment, past: SandboxHistory, events: SandboxEvents): Promise<LiveSandbox>;
  /** What is left here of a persistent sandbox. */
  localState(vmId: string): Promise<LocalState>;
  /** Makes the suspend image durable, in the background, unless it is. */
  makeMemoryDurable(vmId: string): void;
  /** @throws saying why the suspend image cannot be resumed here */
  checkMemory(vmId: string): Promise<void>;
  /**
   * Discards the suspend image. Its dirty pages are written to the disk first, if that is possible.
   */
  discardMemory(assignment: Assignment, past: SandboxHistory, signal: AbortSignal): Promise<void>;
  end(vmId: string): Promise<void>;
  destroy(vmId: string): Promise<void>;
}
