/** What a runner is started with. */
import type { RunnerFacts } from '@releap/contract';
import type { Logger } from 'pino';
import type { DiskLimit } from './cgroup/disk-limit.ts';
import type { DataListen } from './data/tls-listener.ts';
import type { BuildLimits } from './dockerfile/build-limits.ts';

/** Machine size of a create without sizes. Its template is made before the runner reports that it is ready. */
export const DEFAULT_MACHINE_SIZE = { vcpus: 2, memMib: 1024 };

export interface RunnerOptions {
  /** `RELEAP_HOME`, absolute. The runner keeps its state in `runner/` below it. */
  home: string;
  /** `RELEAP_CACHE`, absolute: images, templates, empty disks. */
  cacheDir: string;
  /** What set-up has built: kernel, initramfs, packages. */
  buildDir: string;
  /** Absolute path of a kernel of the operator's own for the guests. */
  guestKernel?: string;
  /** Internal listener of the control plane. */
  controlUrl: string;
  /** SHA-256 of the root of its certificate, in hexadecimal, where it is on another machine. */
  controlFingerprint?: string | undefined;
  /** Lets this machine join an installation that does not know it. */
  joinToken: () => Promise<string | undefined>;
  /** `RELEAP_ACCELERATOR`. */
  accelerator?: 'auto' | 'kvm' | 'tcg';
  /** `RELEAP_CPU_MODEL`. */
  cpuModel?: string;
  /** Ends a trial of KVM: the start fails with its reason. */
  signal?: AbortSignal | undefined;
  region: string;
  /** What the operator calls the machine. Default: its own name. */
  name?: string | undefined;
  /** Address that declared ports are published on. */
  listenHost: string;
  /** Where gateways and control servers of other machines connect; absent: only those of this machine do. */
  dataListen?: DataListen | undefined;
  /** User of the engine of previews on this machine, who may connect to sandboxes. */
  previewUid?: number | undefined;
  warmPool: {
    /** Micro-VMs of the default shape kept restored and waiting, at least; 0 for no waiting VMs. */
    size: number;
    /** Memory that waiting VMs may take together, MiB. Default: an eighth of the host's. */
    memoryMib?: number;
  };
  /** Private networks, as CIDR, that the egress policies of tenants may open. */
  tenantPrivateNetworks: readonly string[];
  /** Certificates of authorities, PEM, that servers which secrets are sent to may be verified with besides those of the host. */
  egressCa?: string | undefined;
  /** Endpoints of object stores that are allowed besides those at public addresses; see `AddressPolicy`. */
  storePrivateHosts?: readonly string[];
  images: {
    /** Hosts and networks that pulls may connect to besides public addresses. */
    privateHosts: readonly string[];
    /** Instead of Amazon's endpoints for tokens of its registries. */
    ecrEndpoint?: string;
    /** Most root images and unpacked layers kept, MiB. */
    cacheMib: number;
    layerMib: number;
  };
  /** What control does not name any more is removed after this many days; 0 keeps it for ever. */
  quarantineDays: number;
  /** Between background commits of volumes that sandboxes use. */
  volumeCommitMs: number;
  /** What a build of a Dockerfile may take, and how many run at a time. */
  builds: Omit<BuildLimits, 'processes'>;
  /** What each sandbox may read from the disk, and write to it. */
  diskLimit?: DiskLimit;
  /** What this machine offers, instead of what it has. */
  capacity?: { cores?: number; memMib?: number; diskMib?: number };
  /** Slugs of the classes of hardware that this machine has, by kind. */
  classes?: RunnerFacts['classes'];
  log: Logger;
}
