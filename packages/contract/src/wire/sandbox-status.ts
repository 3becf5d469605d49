/**
 * The statuses of a sandbox as data. Which change leads from one to another is the control plane's table;
 * here is what callers may rely on about each.
 */
import { Type, type Static } from 'typebox';

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
