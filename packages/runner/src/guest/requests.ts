/** What a guest is asked for, and how it is written on the wire. */
import type { Readable, Writable } from 'node:stream';
import type { GuestStore } from '@releap/contract';
import type { EntrypointState } from './replies.ts';

export interface GuestNetwork {
  address: string;
  prefix: number;
  gateway?: string;
  mac?: string;
  mtu?: number;
  /** Default `eth0`. */
  interface?: string;
}

export interface GuestDisk {
  /** Such as `vda`. */
  device: string;
  fstype?: 'squashfs' | 'erofs' | 'ext4';
  /** Size of the device. Given, the agent waits until its kernel has seen an exchanged disk's new size. */
  bytes?: number;
  /** The agent has mounted it in its warm-up, and it was not exchanged since. */
  mounted?: boolean;
}

/** What differs between copies of one memory image. */
export interface GuestIdentity {
  hostname?: string;
  /** 32 lowercase hexadecimal digits. */
  machineId?: string;
  /** Unix time in nanoseconds. */
  clockNs?: bigint;
  /** At least 32 random bytes that no other guest gets. */
  entropy?: Uint8Array;
  dns?: string[];
  network?: GuestNetwork;
  /** Root certificate, PEM, that its programs trust besides those of its image. */
  trust?: string;
}

export interface ProcessDefaults {
  /** Of every process, verbatim; PATH, HOME and HOSTNAME are added where missing. */
  env?: Record<string, string>;
  /** As in an OCI image: name or uid, optionally `:group`. Default root. */
  user?: string;
  workingDir?: string;
}

export interface GuestConfig extends GuestIdentity, ProcessDefaults {
  disks?: { root: GuestDisk; scratch: GuestDisk; docker?: GuestDisk };
  /** A container engine runs in it: the agent keeps dockerd running (`start`), or the sandbox does. */
  docker?: { start: boolean };
  /** Object stores that are mounted before the entrypoint runs. */
  stores?: StoreMount[];
  /** Serves these. */
  storeProgram?: GuestProgram;
  /** Folders of the host that are mounted before the entrypoint runs. */
  volumes?: GuestVolume[];
  /** Memory of the machine that the sandbox does not get. */
  reserveBytes?: number;
  /** The image's command; its env, user and workingDir go over those of the sandbox. */
  entrypoint?: ProcessDefaults & {
    argv: string[];
    /** What asks it to end, as images name it; default SIGTERM. */
    stopSignal?: string;
  };
}

/** A mount of a folder that the host shares. */
export interface GuestVolume {
  tag: string;
  /** Absolute. */
  path: string;
}

/** A mount of an object store, for which the agent runs rclone. */
export interface StoreMount extends GuestStore {
  /** URL of the host's proxy. */
  endpoint: string;
}

/** A program that the agent gets from the host. It is sent only where the agent does not have it. */
export interface GuestProgram {
  /** On the host. */
  path: string;
  /** Tells it from other versions. */
  digest: string;
  bytes: number;
}

export interface ExecRequest {
  /** Either the program and its arguments … */
  argv?: string[];
  /** … or a line for `/bin/sh -c`. */
  shell?: string;
  cwd?: string;
  /** Over the sandbox's own. */
  env?: Record<string, string>;
  user?: string;
  /** Whether stdin is to be open; else it is /dev/null. */
  stdin?: boolean;
  pty?: { rows: number; cols: number };
  /** The process group gets SIGTERM then, and SIGKILL `killGraceMs` (2 s) later. */
  timeoutMs?: number;
  killGraceMs?: number;
}

export interface ExecResult {
  /** 128 + signal number when a signal ended it; 127 and 126 also when it could not be started, see `error`. */
  exitCode: number;
  signal?: string;
  timedOut: boolean;
  error?: string;
}

export interface GuestProcess {
  stdin: Writable;
  stdout: Readable;
  /** Empty with a terminal. */
  stderr: Readable;
  /** Settles once the process ended AND its output was read to the end: read or `resume()` both streams. */
  exit: Promise<ExecResult>;
  /** To the process group. @param name such as `SIGINT` or `2` */
  signal(name: string): Promise<void>;
  resize(size: { rows: number; cols: number }): Promise<void>;
  /** Gives up: SIGTERM, then SIGKILL to the group. */
  cancel(): void;
}

/** A connection to a port of the guest's loopback interface. The end of one direction leaves the other one open. */
export interface GuestDial {
  readable: Readable;
  writable: Writable;
  /** Ends both directions; the guest's server gets a reset. */
  reset(): void;
}

export interface GuestStatus {
  uptimeSeconds: number;
  configured: boolean;
  frozen: boolean;
  entrypoint: EntrypointState;
  execs: number;
  processes: number;
  memory: { total: number; available: number };
  disk: { total: number; used: number; available: number };
}

/** How a sandbox was frozen. */
export interface GuestFreeze {
  /**
   * Some threads were waiting inside the kernel, such as for a disk. They do not come out of it before the sandbox is
   * thawed, wherever that is.
   */
  inKernel: boolean;
  /** Microseconds of `wait` (for a process that was just being started), `processes` and `disk`. */
  stepsUs: Record<string, number>;
}

export interface CallOptions {
  signal?: AbortSignal;
  deadlineMs?: number;
}

/** As the agent takes it. */
export const identityParams = (identity: GuestIdentity): Record<string, unknown> => ({
  hostname: identity.hostname,
  machine_id: identity.machineId,
  clock_ns: identity.clockNs?.toString(),
  entropy: identity.entropy === undefined ? undefined : Buffer.from(identity.entropy).toString('base64'),
  dns: identity.dns,
  network: identity.network,
  trust: identity.trust,
});

export const programParams = ({ digest, bytes }: GuestProgram): Record<string, unknown> => ({
  digest,
  bytes,
});

/** Parameters of `configure`. */
export const configParams = (config: GuestConfig): Record<string, unknown> => ({
  ...identityParams(config),
  ...defaultsParams(config),
  disks: config.disks,
  docker: config.docker,
  stores: config.stores,
  store_program: config.storeProgram && programParams(config.storeProgram),
  volumes: config.volumes,
  reserve_bytes: config.reserveBytes,
  entrypoint:
    config.entrypoint === undefined
      ? undefined
      : {
          argv: config.entrypoint.argv,
          stop_signal: config.entrypoint.stopSignal,
          ...defaultsParams(config.entrypoint),
        },
});

/** As the agent takes them. */
export const defaultsParams = (defaults: ProcessDefaults): Record<string, unknown> => ({
  env: defaults.env,
  user: defaults.user,
  working_dir: defaults.workingDir,
});
