/** The create of a sandbox. */
import { Type, type Static } from 'typebox';
import { BOUNDS, DEFAULTS, LIMITS, PLATFORM_LIMITS } from '../platform/limits.ts';
import type { Operation } from '../platform/operation.ts';
import { ImageInput } from '../storage/image.ts';
import { SandboxStatus } from './sandbox-record.ts';

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

export const sandboxCreateOperations = {
  createSandbox: {
    method: 'POST',
    path: '/vms',
    tag: 'Sandboxes',
    summary: 'Create a sandbox',
    description:
      'Responds as soon as the create is recorded. Follow it with `GET /vms/:id?wait=running`, or through its job. ' +
      'Sizes below the minimum of the platform are raised to it; unknown fields are ignored. From a snapshot, the default ' +
      'region is that of the snapshot, and `scratch_mib` is fixed. From a full snapshot, the sandbox resumes the captured ' +
      'memory, is persistent, has the same cores and memory, and by default the environment, ports and egress policy of the ' +
      'captured sandbox.',
    security: 'workload',
    body: SandboxCreateRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxCreateResponse } },
    codes: [
      'image_not_found',
      'snapshot_not_found',
      'volume_not_found',
      'object_store_not_found',
      'secret_not_found',
      'unknown_region',
      'ambiguous_reference',
      'limit_reached',
      'image_not_ready',
      'image_failed',
      'snapshot_not_ready',
      'snapshot_failed',
      'host_lost',
      'no_capacity',
      'in_use',
      'secret_missing',
      'concurrent_change',
      'quota_exceeded',
    ],
    errors: {
      400:
        'A field is not valid: mode, cpu (not above 0, over a cap), guarantees over the burstable caps, name or value of ' +
        'an environment variable, unknown secret, a mount path that is invalid, reserved or used twice, more than 8 ' +
        'volumes or object-store mounts, unknown region, cpu_arch, cpu_type, network_class or disk_class; a full snapshot ' +
        'outside its home region, or sizes that differ from those of the snapshot.',
      402: 'The organization is out of credits.',
      404: 'The snapshot named as image, a volume or an object store does not exist.',
      409:
        'The image, snapshot, volume or object store is not ready, or the credentials of the store were deleted; the machine that has the snapshot has not been heard ' +
        'from, is being drained, or cannot run it (another VMM or CPU); an image or disk snapshot is still replicating into that region.',
      429:
        'The create queue is full, or more requests were sent than one API key or one organization may ' +
        'make in a minute. Nothing was created.',
      503: 'The queue is temporarily unavailable. Nothing was created.',
    },
  },
} as const satisfies Record<string, Operation>;
