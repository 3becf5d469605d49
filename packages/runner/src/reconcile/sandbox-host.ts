import type { Assignment, Observation, PortMapping, RootSource } from '@releap/contract';
import type { GuestClient } from '../guest/index.ts';
import type { LogFile } from '../logs/log-file.ts';
import type { ImageConfig } from '../image/image-config.ts';

/** A root image that stays on this machine while it is held. */
export interface HeldImage extends Disposable {
  digest: string;
  path: string;
  config: ImageConfig;
}

/** Where a running sandbox can be reached. */
export interface Addresses {
  vm_ip: string;
  host_ip: string;
  port_map: PortMapping[];
}

/** A sandbox whose micro-VM runs and whose agent answers. */
export interface LiveSandbox {
  /** The agent's connection; made anew when it was lost. Rejects when the agent does not answer. */
  guest(): Promise<GuestClient>;
  addresses: Addresses;
  console: LogFile;
  entrypoint: LogFile;
  /** Lets go of sockets and files on this side; the VMM is not touched. */
  close(): Promise<void>;
}

/**
 * What a machine can do for a sandbox. Every call may be repeated, and `destroy` removes whatever any of them
 * left, finished or not.
 */
export interface SandboxHost {
  /** Whether the root image lies here already, so that a create need not say `building`. */
  hasImage(source: RootSource): Promise<boolean>;
  acquireImage(source: RootSource, signal: AbortSignal): Promise<HeldImage>;
  boot(
    assignment: Assignment,
    image: HeldImage,
    events: { onExit: (reason: string) => void },
    signal: AbortSignal,
  ): Promise<LiveSandbox>;
  /** Finds the VM of a previous runner again; throws when it is gone. */
  adopt(
    assignment: Assignment,
    observation: Observation,
    events: { onExit: (reason: string) => void },
  ): Promise<LiveSandbox>;
  destroy(vmId: string): Promise<void>;
}
