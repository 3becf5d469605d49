/**
 * A sandbox as reads show it, and its statuses as data. Which change leads from one to another is the control plane's table;
 * here is what callers may rely on about each.
 */
import { Type, type Static } from 'typebox';
import { nullable, UpdatedAt } from '../platform/fields.ts';

export const SANDBOX_STATUSES = [
  'pending',
  'assigned',
  'booting',
  'building',
  'running',
  'stopping',
  'stopped',
  'pausing',
  'paused',
  'deleting',
  'deleted',
  'failed',
  'lost',
] as const;

export const SandboxStatus = Type.Enum(SANDBOX_STATUSES);
export type SandboxStatus = Static<typeof SandboxStatus>;

export interface SandboxStatusFacts {
  /** Transient: must have a deadline and an exit. */
  transient: boolean;
  /** Nothing follows, or only a delete. */
  terminal: boolean;
  /** A stop may be requested (persistent sandboxes). */
  stoppable: boolean;
  /** A delete has resources to tear down first; in other statuses it is immediate. */
  live: boolean;
  /** `wait` for another status ends here too, because that status may never be reached. */
  endsWait: boolean;
  /** `wait_exact` for another status ends here too. */
  endsWaitExact: boolean;
}

const NONE: SandboxStatusFacts = {
  transient: false,
  terminal: false,
  stoppable: false,
  live: false,
  endsWait: false,
  endsWaitExact: false,
};

export const SANDBOX_STATUS_FACTS: Readonly<Record<SandboxStatus, SandboxStatusFacts>> = {
  pending: { ...NONE, transient: true, live: true },
  assigned: { ...NONE, transient: true, live: true, stoppable: true },
  building: { ...NONE, transient: true, live: true, stoppable: true },
  booting: { ...NONE, transient: true, live: true, stoppable: true },
  running: { ...NONE, live: true, stoppable: true },
  stopping: { ...NONE, transient: true, live: true, endsWait: true },
  stopped: { ...NONE, endsWait: true },
  pausing: { ...NONE, transient: true, live: true },
  paused: { ...NONE },
  deleting: { ...NONE, transient: true, live: true, endsWait: true },
  deleted: { ...NONE, terminal: true, endsWait: true },
  failed: { ...NONE, terminal: true, endsWait: true, endsWaitExact: true },
  lost: { ...NONE, terminal: true, endsWait: true, endsWaitExact: true },
};

/** Groups of statuses for clients. */
export const SANDBOX_STATUS_GROUPS = {
  /** Its host is in use: it must not be switched off. */
  busy: ['assigned', 'building', 'booting', 'running', 'stopping', 'pausing', 'deleting'],
  /** A start or resume passes through these. */
  starting: ['assigned', 'building', 'booting'],
  /** A fork passes through these before it runs or is paused. */
  forking: ['pending', 'assigned', 'building', 'booting', 'pausing'],
  /** Neither console nor entrypoint has further output. */
  silent: ['stopped', 'paused', 'deleting', 'deleted', 'failed', 'lost'],
} as const satisfies Record<string, readonly SandboxStatus[]> as Readonly<
  Record<'busy' | 'starting' | 'forking' | 'silent', readonly SandboxStatus[]>
>;

/** The target of a long poll. */
export interface WaitTarget {
  status: SandboxStatus;
  exact: boolean;
}

/** The target of `?wait=` and `?wait_exact=`; the exact one takes precedence. Null for neither: respond at once. */
export function waitTarget(query: { wait?: SandboxStatus; wait_exact?: SandboxStatus }): WaitTarget | null {
  if (query.wait_exact !== undefined) return { status: query.wait_exact, exact: true };
  return query.wait === undefined ? null : { status: query.wait, exact: false };
}

/** Whether a long poll ends at this status. */
export function waitIsOver(target: WaitTarget | null, status: SandboxStatus): boolean {
  if (target === null || target.status === status) return true;
  const facts = SANDBOX_STATUS_FACTS[status];
  return target.exact ? facts.endsWaitExact : facts.endsWait;
}

export const SandboxMode = Type.Enum(['burstable', 'dedicated'] as const);
export type SandboxMode = Static<typeof SandboxMode>;

export const CpuArch = Type.Enum(['amd64', 'arm64'] as const);
export type CpuArch = Static<typeof CpuArch>;

export const PortProto = Type.Enum(['tcp', 'udp'] as const);
export type PortProto = Static<typeof PortProto>;

export const PortMapRecord = Type.Object({
  vm_port: Type.Integer(),
  proto: PortProto,
  host_port: Type.Integer({ description: 'Connect to `host_ip` at this port.' }),
});
export type PortMapRecord = Static<typeof PortMapRecord>;

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

export const SandboxParams = Type.Object({
  id: Type.String({ description: 'Sandbox id, or its bare UUID.' }),
});
