/** Sandboxes on the wire. */
import { Type, type Static } from 'typebox';
import { ImageInput } from './storage/image.ts';
import { BOUNDS, DEFAULTS, LIMITS, PLATFORM_LIMITS } from './platform/limits.ts';
import { NextCursor, TimeoutParam, cursorKind } from './platform/paging.ts';
import { SANDBOX_STATUSES, SandboxStatus } from './sandbox-status.ts';
import { UpdatedAt } from './platform/fields.ts';

export const SandboxMode = Type.Enum(['burstable', 'dedicated'] as const);
export type SandboxMode = Static<typeof SandboxMode>;

export const CpuArch = Type.Enum(['amd64', 'arm64'] as const);
export type CpuArch = Static<typeof CpuArch>;

export const PortProto = Type.Enum(['tcp', 'udp'] as const);
export type PortProto = Static<typeof PortProto>;

const int = (minimum: number, description: string) =>
  Type.Integer({ minimum, maximum: BOUNDS.int32, description });

export const PortRequest = Type.Object({
  vm_port: Type.Integer({
    minimum: LIMITS.portMin,
    maximum: LIMITS.portMax,
    description: 'Port inside the sandbox.',
  }),
  proto: Type.Optional(Type.Enum(['tcp', 'udp'] as const, { default: DEFAULTS.portProto })),
});

export const VolumeMountRequest = Type.Object({
  volume: Type.String({ minLength: 1, description: 'Id or name of a volume.' }),
  mount_path: Type.String({ description: 'Absolute path inside the sandbox.' }),
  subpath: Type.Optional(
    Type.String({ description: 'Directory of the volume to mount; the whole volume when absent.' }),
  ),
});

export const ObjectStoreMountRequest = Type.Object({
  object_store: Type.String({ minLength: 1, description: 'Id or name of an object store.' }),
  mount_path: Type.String({ description: 'Absolute path inside the sandbox.' }),
  read_only: Type.Optional(Type.Boolean({ description: "Overrides the store's own setting." })),
});

export const EgressPolicy = Type.Object(
  {
    enabled: Type.Boolean({ description: 'Whether only the entries of `allow`, and DNS, are reachable.' }),
    allow: Type.Optional(
      Type.Array(Type.String(), {
        maxItems: BOUNDS.egressEntries,
        description: 'IPv4 addresses, IPv4 networks as in `10.0.0.0/8`, domains, and `*.` with a domain.',
      }),
    ),
  },
  { description: 'Network destinations that the sandbox may reach. Immutable.' },
);

const LeaseSeconds = (description: string) =>
  Type.Integer({ minimum: BOUNDS.leaseSecondsMin, maximum: BOUNDS.leaseSecondsMax, description });

export const SandboxCreateRequest = Type.Object({
  image: ImageInput,
  name: Type.Optional(
    Type.String({
      maxLength: BOUNDS.displayNameChars,
      description: 'Display name, not necessarily unique. Default `sandbox-<8 hex>`.',
    }),
  ),
  mode: Type.Optional(
    Type.Enum(['burstable', 'dedicated'] as const, {
      default: DEFAULTS.mode,
      description:
        'Burstable: the guarantee may be exceeded while the machine has free capacity. Dedicated: whole, exclusive cores.',
    }),
  ),
  cpu: Type.Optional(
    Type.Number({
      exclusiveMinimum: 0,
      description:
        `Guaranteed cores. Burstable: raised to at least ${LIMITS.burstableCpuMin}, default ${DEFAULTS.burstableCpu}. ` +
        `Dedicated: rounded up to whole cores, at most ${PLATFORM_LIMITS.dedicatedCpuMax}. Values over the cap are refused.`,
    }),
  ),
  vcpus: Type.Optional(int(1, `Cores, when \`cpu\` is absent; \`cpu\` wins. Default ${DEFAULTS.vcpus}.`)),
  mem_mib: Type.Optional(int(1, `Guaranteed memory in MiB. Default ${DEFAULTS.memMib}.`)),
  scratch_mib: Type.Optional(int(1, `Size of the writable disk in MiB. Default ${DEFAULTS.scratchMib}.`)),
  gpu_host: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: BOUNDS.gpusPerSandbox,
      default: 0,
      description: 'Number of dedicated GPUs.',
    }),
  ),
  docker_data_mib: Type.Optional(
    int(
      0,
      'Size in MiB of a disk for `/var/lib/docker`, empty at every boot and never captured. Absent or 0 for none.',
    ),
  ),
  ports: Type.Optional(
    Type.Array(PortRequest, {
      maxItems: BOUNDS.portsPerSandbox,
      description: 'Ports that are reachable from outside.',
    }),
  ),
  volumes: Type.Optional(Type.Array(VolumeMountRequest, { maxItems: LIMITS.volumesPerSandbox })),
  object_store_mounts: Type.Optional(
    Type.Array(ObjectStoreMountRequest, { maxItems: LIMITS.objectStoreMountsPerSandbox }),
  ),
  secrets: Type.Optional(
    Type.Array(Type.String(), {
      maxItems: BOUNDS.secretsPerSandbox,
      description:
        'Names of secrets of the project. Each becomes a variable of that name with a placeholder as its value; `env` must not contain it.',
    }),
  ),
  env: Type.Optional(
    Type.Record(Type.String(), Type.String({ writeOnly: true }), {
      description: `Environment of all processes inside. Values of at most ${LIMITS.envValueBytes / 1024} KiB.`,
    }),
  ),
  persistent: Type.Optional(
    Type.Boolean({ default: false, description: 'Its disk survives stop and start.' }),
  ),
  spot: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Spot tier: cheaper, and evicted when its capacity is needed.',
    }),
  ),
  egress_policy: Type.Optional(EgressPolicy),
  region: Type.Optional(Type.String({ description: 'Slug of a region or id of a global region.' })),
  cpu_arch: Type.Optional(Type.Enum(['amd64', 'arm64'] as const, { default: DEFAULTS.cpuArch })),
  cpu_type: Type.Optional(Type.String({ description: 'Slug of the minimum CPU tier.' })),
  network_class: Type.Optional(Type.String({ description: 'Slug of the minimum network class.' })),
  disk_class: Type.Optional(Type.String({ description: 'Slug of the minimum disk class.' })),
  lease_s: Type.Optional(
    LeaseSeconds(
      'The sandbox is deleted after so many seconds unless `PUT /vms/:id/lease` renews its lease: for clients that delete it ' +
        'themselves unless they are killed. Default: no lease.',
    ),
  ),
});
export type SandboxCreateRequest = Static<typeof SandboxCreateRequest>;

export const SandboxLeaseRequest = Type.Object({
  lease_s: Type.Union([LeaseSeconds('Seconds from now.'), Type.Null()], {
    description: 'Null: the sandbox is kept until it is deleted.',
  }),
});

export const SandboxLease = Type.Object({
  vm_id: Type.String(),
  lease_expires_at: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
});
export type SandboxLease = Static<typeof SandboxLease>;

export const SandboxCreateResponse = Type.Object({
  vm_id: Type.String(),
  job_id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  status: SandboxStatus,
  access_token: Type.String({ description: 'Access token of this sandbox only. Shown once.' }),
});
export type SandboxCreateResponse = Static<typeof SandboxCreateResponse>;

export const PortMapRecord = Type.Object({
  vm_port: Type.Integer(),
  proto: PortProto,
  host_port: Type.Integer({ description: 'Connect to `host_ip` at this port.' }),
});
export type PortMapRecord = Static<typeof PortMapRecord>;

const nullable = <T extends ReturnType<typeof Type.String>>(schema: T, description: string) =>
  Type.Union([schema, Type.Null()], { description });

export const SandboxRecord = Type.Object({
  id: Type.String(),
  name: Type.String(),
  image_ref: Type.String({ description: 'The requested image.' }),
  manifest_name: Type.Optional(Type.String({ description: 'Digest of the booted image; once known.' })),
  runner_id: Type.Optional(Type.String({ description: 'The machine on which it runs; once placed.' })),
  status: SandboxStatus,
  mode: SandboxMode,
  cpu: Type.Number(),
  vcpus: Type.Integer(),
  mem_mib: Type.Integer(),
  scratch_mib: Type.Integer(),
  vm_ip: Type.Optional(Type.String({ description: 'Its address on its own network, if it has one.' })),
  host_ip: Type.Optional(
    Type.String({ description: 'Address of its declared ports, while they are reachable.' }),
  ),
  port_map: Type.Array(PortMapRecord),
  error: nullable(
    Type.String(),
    'Why it failed, why the last start, pause or resume failed, or why it ended by itself.',
  ),
  region: Type.String(),
  forked_from: Type.Optional(nullable(Type.String(), 'Only in reads of one sandbox.')),
  lease_expires_at: Type.Optional(
    Type.String({
      format: 'date-time',
      description:
        'RFC 3339. Only in reads of one sandbox that has a lease: when it is deleted unless the lease is renewed.',
    }),
  ),
  spot: Type.Boolean(),
  spot_evicted_at: nullable(Type.String({ format: 'date-time' }), 'RFC 3339.'),
  persistent: Type.Boolean(),
  created_at: Type.Optional(Type.String({ format: 'date-time', description: 'RFC 3339.' })),
  updated_at: Type.Optional(UpdatedAt),
});
export type SandboxRecord = Static<typeof SandboxRecord>;

export const SandboxList = Type.Object({ vms: Type.Array(SandboxRecord), next_cursor: NextCursor });
export type SandboxList = Static<typeof SandboxList>;

export const SandboxParams = Type.Object({
  id: Type.String({ description: 'Sandbox id, or its bare UUID.' }),
});

export const SandboxGetQuery = Type.Object({
  wait: Type.Optional(SandboxStatus),
  wait_exact: Type.Optional(SandboxStatus),
  timeout_ms: Type.Optional(TimeoutParam),
});
export type SandboxGetQuery = Static<typeof SandboxGetQuery>;

export const LogQuery = Type.Object({
  follow: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Keep the response open and send new output, until the sandbox ends.',
    }),
  ),
});
export type LogQuery = Static<typeof LogQuery>;

export const SandboxLifecycleResponse = Type.Object({
  vm_id: Type.String(),
  status: Type.Enum(SANDBOX_STATUSES, {
    description: 'The present status: transient, or already the requested one if the call was repeated.',
  }),
});
export type SandboxLifecycleResponse = Static<typeof SandboxLifecycleResponse>;

export const SandboxDeleteResponse = Type.Object({ vm_id: Type.String(), status: SandboxStatus });
export type SandboxDeleteResponse = Static<typeof SandboxDeleteResponse>;

/** Cursors of lists of sandboxes. */
export const SANDBOX_CURSORS = cursorKind(1);
