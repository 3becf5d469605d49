/** What the operator does with hosts: draining and moving, names and classes, evictions, and joining again. */
import { Type, type Static } from 'typebox';
import { DeclaredClasses, HostClasses, HostClassesRequest } from './hardware-class.ts';
import { SandboxStatus } from './sandbox-record.ts';
import type { Operation } from '../platform/operation.ts';
import { nextPage, OptionalPageQuery } from '../platform/paging.ts';

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
  processor: Type.Optional(Type.String({ description: 'Name of the processor.' })),
  name: Type.Optional(
    Type.String({
      description: 'What the machine is called: `RELEAP_HOST_NAME` of its runner, or its own name.',
    }),
  ),
  classes: Type.Optional(DeclaredClasses),
});

export const HostRecord = Type.Object({
  id: Type.String({ description: 'UUID.' }),
  region: Type.String(),
  status: Type.Enum(['online', 'offline', 'lost'] as const),
  ready: Type.Boolean({ description: 'It accepts sandboxes, unless it is being drained.' }),
  draining: Type.Boolean(),
  draining_since: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
  force: Type.Boolean({ description: 'The drain deletes ephemeral sandboxes too.' }),
  move: Type.Boolean({ description: 'The drain moves persistent sandboxes to other hosts of the region.' }),
  last_seen_at: Type.String({ format: 'date-time' }),
  facts: HostFacts,
  name: Type.Union([Type.String(), Type.Null()], {
    description: 'The one that the operator has set, else `facts.name`. Null: neither.',
  }),
  renamed: Type.Boolean({ description: 'The operator has set `name`: it wins over `facts.name`.' }),
  join_token: Type.Union(
    [Type.Object({ id: Type.String(), name: Type.Union([Type.String(), Type.Null()]) }), Type.Null()],
    {
      description:
        'The token of the operator with which it joined, also once that is no longer listed (then without its name). Null: that of the ' +
        'deployment, or a control server of an earlier version let it join.',
    },
  ),
  classes: HostClasses,
  used: HostResources,
  allocatable: HostResources,
  held_memory: Type.Object(
    { mem_mib: Type.Integer(), reclaimable_mib: Type.Integer() },
    {
      description:
        'Memory that the host holds outside the guarantees of sandboxes: memory that forks share, loaded snapshots, waiting VMs. `used` counts it without the reclaimable part, which the host releases when it needs it.',
    },
  ),
  free_disk_mib: Type.Union([Type.Integer(), Type.Null()], {
    description:
      'Free space of its file system for new sandboxes. If it is less than what is not allocated, `used` counts the difference. Null: its runner is of an earlier version.',
  }),
  sandboxes: Type.Unsafe<Partial<Record<SandboxStatus, number>>>(
    Type.Record(Type.String(), Type.Integer(), {
      description: 'Number of its sandboxes by status; statuses without any are left out.',
    }),
  ),
  snapshots: Type.Integer({ description: 'Snapshots that it has or is taking.' }),
  moving: Type.Integer({
    description:
      'Its sandboxes that are being moved to other hosts, and copies of moved ones that it has not removed yet.',
  }),
  uncommitted_volumes: Type.Integer({
    description: 'Volumes with changes that only this host has. They would be lost with it.',
  }),
});
export type HostRecord = Static<typeof HostRecord>;

export const HostList = Type.Object({ hosts: Type.Array(HostRecord), ...nextPage });
export type HostList = Static<typeof HostList>;

export const HostParams = Type.Object({ id: Type.String() });

/** Names of hosts that the operator sets, in characters. */
export const HOST_NAME_CHARS = 64;

export const HostNameRequest = Type.Object({
  name: Type.Union([Type.String(), Type.Null()], {
    description: `1 to ${HOST_NAME_CHARS} printable characters. Null: the one that its runner declares applies again.`,
  }),
});
export type HostNameRequest = Static<typeof HostNameRequest>;

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
  move: Type.Optional(
    Type.Boolean({
      description:
        'Move persistent sandboxes to other hosts of the region. Those that run are paused, or stopped where their memory cannot be saved, ' +
        'and run again on the other host.',
    }),
  ),
});
export type HostDrainRequest = Static<typeof HostDrainRequest>;

export const HostMove = Type.Object({
  vm_id: Type.String(),
  status: Type.Enum(['waiting', 'storing', 'placing', 'resuming', 'done', 'failed'] as const, {
    description:
      '`waiting`: until it does not run, and for a host. `storing`: its host uploads it. `placing`: the other one fetches it. ' +
      '`resuming`: it is there, and runs again soon. A `failed` one is still on its host, and is moved again while the drain lasts.',
  }),
  target: Type.Union([Type.String(), Type.Null()], { description: 'The other host, once it is chosen.' }),
  resumes: Type.Boolean({ description: 'It ran before the drain.' }),
  pause_ms: Type.Union([Type.Integer(), Type.Null()], {
    description: 'For how long it did not run, once it runs again.',
  }),
  error: Type.Union([Type.String(), Type.Null()], {
    description: 'What it waits for, or why it failed, or could not be started again.',
  }),
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
});
export type HostMove = Static<typeof HostMove>;

export const HostMoves = Type.Object({ moves: Type.Array(HostMove) });
export type HostMoves = Static<typeof HostMoves>;

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

export const HostResponse = Type.Object({ host: HostRecord });
export type HostResponse = Static<typeof HostResponse>;

export const HostAuthorityRecord = Type.Object({
  fingerprint: Type.String({ description: 'SHA-256 of the certificate that signs, in hexadecimal.' }),
  roots: Type.String({ description: 'PEM: one certificate, or while it is being replaced two.' }),
});
export type HostAuthorityRecord = Static<typeof HostAuthorityRecord>;

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

const unknownHost = 'There is no such host.';
const onHost = { tag: 'Hosts', security: 'operator', params: HostParams } as const;

export const operatorHostOperations = {
  listHosts: {
    method: 'GET',
    path: '/operator/hosts',
    tag: 'Hosts',
    summary: 'List all hosts',
    security: 'operator',
    query: OptionalPageQuery,
    items: 'hosts',
    success: { status: 200, response: { description: 'One page, or all of them, by id.', schema: HostList } },
    errors: {},
  },
  drainHost: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/drain',
    summary: 'Drain a host: place nothing new on it, and pause, stop or evict its sandboxes',
    body: HostDrainRequest,
    success: { status: 200, response: { description: 'Begun.', schema: HostDrainResponse } },
    errors: { 400: 'A field is not valid.', 404: unknownHost },
  },
  listHostMoves: {
    ...onHost,
    method: 'GET',
    path: '/operator/hosts/:id/moves',
    summary: 'List the moves of sandboxes from a host to others',
    description: 'Those in progress, and the newest of those that have ended, the newest first: 500 at most.',
    success: { status: 200, response: { description: 'The moves.', schema: HostMoves } },
    errors: { 404: unknownHost },
  },
  undrainHost: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/undrain',
    summary: 'End the drain of a host',
    success: { status: 200, response: { description: 'Ended.', schema: HostResponse } },
    errors: { 404: unknownHost },
  },
  setHostClasses: {
    ...onHost,
    method: 'PUT',
    path: '/operator/hosts/:id/classes',
    summary: 'Set the classes of hardware of a host',
    description: 'They win over those that the host declares. Its sandboxes stay.',
    body: HostClassesRequest,
    success: { status: 200, response: { description: 'Set.', schema: HostResponse } },
    errors: { 400: 'There is no such class, or it is of another architecture.', 404: unknownHost },
  },
  setHostName: {
    ...onHost,
    method: 'PUT',
    path: '/operator/hosts/:id/name',
    summary: 'Set the name of a host',
    description: 'It wins over the one that its runner declares. Names need not be unique.',
    body: HostNameRequest,
    success: { status: 200, response: { description: 'Set.', schema: HostResponse } },
    errors: { 400: 'The name is not valid.', 404: unknownHost },
  },
  evictFromHost: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/evict',
    summary: 'Evict one spot sandbox of a host, or all of them',
    body: HostEvictRequest,
    success: { status: 200, response: { description: 'Begun.', schema: HostEvictResponse } },
    codes: ['sandbox_not_found', 'wrong_state'],
    errors: {
      400: 'A field is not valid.',
      404: `${unknownHost} Or the sandbox is not there.`,
      409: 'The sandbox cannot be evicted in its status, or is not in the spot tier.',
    },
  },
  evictSandbox: {
    ...onHost,
    method: 'POST',
    path: '/operator/vms/:id/evict',
    summary: 'Evict one spot sandbox from its host',
    success: { status: 200, response: { description: 'Begun.', schema: HostEvictResponse } },
    codes: ['wrong_state'],
    errors: {
      404: 'No host holds such a sandbox.',
      409: 'The sandbox cannot be evicted in its status, or is not in the spot tier.',
    },
  },
  forgetHost: {
    ...onHost,
    method: 'DELETE',
    path: '/operator/hosts/:id',
    summary: 'Forget a host that is lost',
    description:
      'For a host that will not return. Its resources are released: its sandboxes fail (those that are being deleted are ' +
      'deleted), its snapshots fail, its builds are assigned to other hosts, and its credential is revoked. Idempotent: a ' +
      'repeated call finishes an interrupted one.',
    success: { status: 200, response: { description: 'Forgotten.', schema: HostForgetResponse } },
    codes: ['host_not_lost'],
    errors: { 404: unknownHost, 409: 'The host is not lost.' },
  },
  permitHostJoin: {
    ...onHost,
    method: 'POST',
    path: '/operator/hosts/:id/join-permission',
    summary: 'Revoke the credential of a host, and let it join again',
    description:
      'For a host whose credential was stolen or lost. Its connection ends; its sandboxes continue. The token is valid once, ' +
      'for this host: start its runner with it as `RELEAP_JOIN_TOKEN`.',
    success: { status: 200, response: { description: 'Revoked.', schema: HostJoinPermission } },
    errors: { 404: unknownHost },
  },
} as const satisfies Record<string, Operation>;
