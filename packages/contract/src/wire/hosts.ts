/** Hosts, for the operator. */
import { Type, type Static } from 'typebox';
import { SandboxStatus } from './compute/sandbox-record.ts';
import { nextPage } from './platform/paging.ts';

export const HostResources = Type.Object({
  cpu: Type.Number({ description: 'Cores.' }),
  mem_mib: Type.Number(),
  disk_mib: Type.Number(),
  gpus: Type.Number(),
});
export type HostResources = Static<typeof HostResources>;

export const HostFacts = Type.Object({
  arch: Type.Enum(['amd64', 'arm64'] as const),
  cores: Type.Number(),
  mem_mib: Type.Integer(),
  disk_mib: Type.Integer(),
  accelerator: Type.Enum(['kvm', 'tcg'] as const),
  cpu_model: Type.String({ description: 'The model that guests see.' }),
  vmm: Type.String({ description: 'The VMM and its version.' }),
  gpus: Type.Integer(),
});

export const HostRecord = Type.Object({
  id: Type.String({ description: 'UUID.' }),
  region: Type.String(),
  status: Type.Enum(['online', 'offline', 'lost'] as const),
  ready: Type.Boolean({ description: 'It accepts sandboxes, unless it is being drained.' }),
  draining: Type.Boolean(),
  draining_since: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
  force: Type.Boolean({ description: 'The drain deletes ephemeral sandboxes too.' }),
  last_seen_at: Type.String({ format: 'date-time' }),
  facts: HostFacts,
  used: HostResources,
  allocatable: HostResources,
  held_memory: Type.Object(
    { mem_mib: Type.Integer(), reclaimable_mib: Type.Integer() },
    {
      description:
        'Memory that the host holds outside the guarantees of sandboxes: memory that forks share, loaded snapshots, waiting VMs. `used` counts it without the reclaimable part, which the host releases when it needs it.',
    },
  ),
  sandboxes: Type.Unsafe<Partial<Record<SandboxStatus, number>>>(
    Type.Record(Type.String(), Type.Integer(), {
      description: 'Number of its sandboxes by status; statuses without any are left out.',
    }),
  ),
  snapshots: Type.Integer({ description: 'Snapshots that it has or is taking.' }),
  uncommitted_volumes: Type.Integer({
    description: 'Volumes with changes that only this host has. They would be lost with it.',
  }),
});
export type HostRecord = Static<typeof HostRecord>;

export const HostList = Type.Object({ hosts: Type.Array(HostRecord), ...nextPage });
export type HostList = Static<typeof HostList>;

export const HostParams = Type.Object({ id: Type.String() });

export const HostJoinPermission = Type.Object({
  host_id: Type.String(),
  /** Lets this host join once. */
  token: Type.String(),
  expires_at: Type.String({ format: 'date-time' }),
});
export type HostJoinPermission = Static<typeof HostJoinPermission>;

export const HostDrainRequest = Type.Object({
  force: Type.Optional(
    Type.Boolean({
      description: 'Delete ephemeral sandboxes too, instead of waiting for their end.',
    }),
  ),
});
export type HostDrainRequest = Static<typeof HostDrainRequest>;

export const HostDrainResponse = Type.Object({
  host: HostRecord,
  moved: Type.Object(
    {
      paused: Type.Array(Type.String()),
      stopped: Type.Array(Type.String()),
      deleted: Type.Array(Type.String()),
    },
    { description: 'Ids of sandboxes that this call has started to pause, stop or delete.' },
  ),
  remaining: Type.Array(
    Type.Object({
      vm_id: Type.String(),
      status: SandboxStatus,
      persistent: Type.Boolean(),
      spot: Type.Boolean(),
    }),
    { description: 'Sandboxes that still run there: ephemeral ones without `force`, or starting ones.' },
  ),
});
export type HostDrainResponse = Static<typeof HostDrainResponse>;

export const HostUndrainResponse = Type.Object({ host: HostRecord });
export type HostUndrainResponse = Static<typeof HostUndrainResponse>;

export const HostForgetResponse = Type.Object({
  host_id: Type.String(),
  forgotten_at: Type.String({ format: 'date-time' }),
  sandboxes: Type.Integer({ description: 'Sandboxes that this call has released.' }),
  snapshots: Type.Integer({ description: 'Snapshots that this call has released.' }),
  builds: Type.Integer({ description: 'Builds that this call has returned to the queue.' }),
});
export type HostForgetResponse = Static<typeof HostForgetResponse>;

export const HostEvictRequest = Type.Object({
  vm_id: Type.Optional(
    Type.String({ description: 'One spot sandbox of this host; all of them when absent.' }),
  ),
});
export type HostEvictRequest = Static<typeof HostEvictRequest>;

export const HostEvictResponse = Type.Object({
  evicted: Type.Array(Type.Object({ vm_id: Type.String(), status: SandboxStatus })),
  remaining: Type.Array(Type.Object({ vm_id: Type.String(), reason: Type.String() }), {
    description: 'Spot sandboxes that could not be evicted, with the reason.',
  }),
});
export type HostEvictResponse = Static<typeof HostEvictResponse>;
