/** The kind `sandbox`: one micro-VM with its disk and, while it is paused, its memory. */
import { Type, type Static } from 'typebox';
import { CertificatePem } from '../wire/internal/runner.ts';
import { GuestStore } from '../wire/internal/credentials.ts';
import { LIMITS } from '../wire/platform/limits.ts';
import { PortMapRecord, PortProto, SandboxMode } from '../wire/compute/sandbox-record.ts';
import { assignmentOf, reportOf } from './envelope.ts';
import { Count, text, Uuid } from '../wire/platform/fields.ts';
import { RootSource } from './source.ts';
import { VolumeMount } from './volume.ts';

/** The capability of runners that mount object stores in sandboxes. */
export const OBJECT_STORES_CAPABILITY = 'object-stores';

/** The capability of runners whose sandboxes can be moved to other hosts, and that take those of others. */
export const MOVES_CAPABILITY = 'sandbox-moves';

/** Desired states of a sandbox on its runner. */
export const DesiredState = Type.Enum(['running', 'stopped', 'paused', 'deleted'] as const);
export type DesiredState = Static<typeof DesiredState>;

/**
 * What a sandbox is created from instead of an empty disk. It is used once: as soon as the runner has copied it to the
 * sandbox's own disk (and memory), it is ignored.
 */
export const Origin = Type.Union([
  /** Memory and disk of another sandbox on the same runner, at the time of the copy. */
  Type.Object({ type: Type.Literal('fork'), vm_id: Uuid }),
  /** A snapshot on the same runner: the disk alone, or memory and disk. */
  Type.Object({
    type: Type.Literal('snapshot'),
    snapshot_id: Uuid,
    kind: Type.Enum(['disk', 'full'] as const),
    /**
     * It is the sandbox itself, which is moved from another host: it is copied also if it is to be stopped. Only sent to runners with the
     * capability `sandbox-moves`.
     */
    moved: Type.Optional(Type.Boolean()),
  }),
]);
export type Origin = Static<typeof Origin>;

/** Everything that a runner needs to start one sandbox, and to start it again after a crash. */
export const SandboxSpec = Type.Object({
  name: Type.String(),
  /** Whose budgets on the host it counts towards; absent from an older control plane. */
  project_id: Type.Optional(Uuid),
  root: RootSource,
  /** Absent for a sandbox that is created with an empty disk. */
  origin: Type.Optional(Origin),
  mode: SandboxMode,
  /** Guaranteed cores. */
  cpu: Type.Number({ exclusiveMinimum: 0 }),
  /** Virtual CPUs that the guest sees; also the most that it may burst to. */
  vcpus: Count,
  mem_mib: Count,
  scratch_mib: Count,
  /** Size of the `/var/lib/docker` device, which is empty at each boot; absent for none. */
  docker_data_mib: Type.Optional(Count),
  ports: Type.Array(Type.Object({ vm_port: Count, proto: PortProto })),
  env: Type.Record(Type.String(), Type.String()),
  /** Runs instead of the entrypoint and command of the image. */
  entrypoint: Type.Optional(Type.Array(Type.String(), { minItems: 1, maxItems: 256 })),
  /** Runs its processes instead of the user of the image. */
  user: Type.Optional(text(256)),
  persistent: Type.Boolean(),
  /**
   * Digest of the root image below its disk, once a runner has reported one: the sandbox then has a disk, and a runner that
   * does not find it reports `failed` and never creates an empty one.
   */
  disk_manifest: Type.Optional(text(512)),
  spot: Type.Boolean(),
  /**
   * Present if secrets of the sandbox may be sent somewhere: connections to these domains are intercepted, and the guest
   * trusts this root certificate. The runner reads the values over HTTP; they are not part of an assignment.
   */
  egress_secrets: Type.Optional(Type.Object({ domains: Type.Array(Type.String()), trust: CertificatePem })),
  /**
   * Object stores that it mounts when it boots; one that resumes has them in its memory. A sandbox with some is only placed on runners
   * with the capability `object-stores`. The keys are those that the guest signs with; the runner reads the credentials over HTTP.
   */
  object_stores: Type.Optional(Type.Array(GuestStore, { maxItems: LIMITS.objectStoreMountsPerSandbox })),
  /**
   * Volumes that it has mounted before its entrypoint starts. Only sent to runners with the capability `volumes`. Such a sandbox
   * always boots, and is never paused, forked or captured with its memory.
   */
  volumes: Type.Optional(Type.Array(VolumeMount, { maxItems: LIMITS.volumesPerSandbox })),
  egress: Type.Optional(Type.Object({ enabled: Type.Boolean(), allow: Type.Array(Type.String()) })),
});
export type SandboxSpec = Static<typeof SandboxSpec>;

/**
 * `start_from`: what `running` starts from when the sandbox does not run: its disk (a boot; memory that was saved is
 * discarded) or its saved memory (a resume). `disk` when absent.
 */
export const SandboxAssignment = assignmentOf(
  'sandbox',
  DesiredState,
  Type.Object({
    ...SandboxSpec.properties,
    start_from: Type.Optional(Type.Enum(['disk', 'memory'] as const)),
    /** Parent of the spans of its first start (W3C Trace Context), while traces are on. */
    traceparent: Type.Optional(text(55)),
  }),
);
export type SandboxAssignment = Static<typeof SandboxAssignment>;

/** A runner's observation of a sandbox; control applies it through the transition table. */
export const ObservedStatus = Type.Enum([
  'building',
  'booting',
  'running',
  'stopping',
  'stopped',
  'pausing',
  'paused',
  'deleting',
  'deleted',
  'failed',
] as const);
export type ObservedStatus = Static<typeof ObservedStatus>;

/** Public mapping of one declared port: connect to `host_ip:host_port` to reach `vm_port` inside. */
export const PortMapping = PortMapRecord;
export type PortMapping = Static<typeof PortMapping>;

export const SandboxDetail = Type.Object({
  /**
   * Why it failed, or is not in its desired state: with `running` why it could not be paused, with `paused` why it could
   * not be resumed, with `stopped` why it could not be started or why it ended.
   */
  error: Type.Optional(Type.String()),
  vm_ip: Type.Optional(text(64)),
  host_ip: Type.Optional(text(64)),
  port_map: Type.Optional(Type.Array(PortMapping, { maxItems: 256 })),
  /** Digest of the booted root image. It marks a persistent sandbox as having a disk to boot. */
  manifest_name: Type.Optional(text(512)),
  /** Only with `paused`: false when the saved memory is gone or damaged. */
  memory: Type.Optional(Type.Boolean()),
  /** Only with `paused`: why this host cannot resume the saved memory as it is now. The memory is kept. */
  memory_blocked: Type.Optional(Type.String()),
});
export type SandboxDetail = Static<typeof SandboxDetail>;

/**
 * A runner that cannot reach the desired state reports the actual one: `running` of a sandbox that could not be paused,
 * `paused` or `stopped` of one that could not be resumed or started and has lost nothing. `failed` means that nothing of
 * it can be used any more.
 */
export const SandboxReport = reportOf(
  'sandbox',
  Type.Union([ObservedStatus, Type.Literal('unsupported')]),
  SandboxDetail,
);
export type SandboxReport = Static<typeof SandboxReport>;
