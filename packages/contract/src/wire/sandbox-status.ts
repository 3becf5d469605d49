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
  /** It will be left without anybody asking, and must have a deadline and an exit. */
  transient: boolean;
  /** Nothing follows, or only a delete. */
  terminal: boolean;
  /** A stop may be asked for (persistent sandboxes). */
  stoppable: boolean;
  /** A delete has to tear something down first; elsewhere it is done at once. */
  live: boolean;
  /** `wait` for another status returns here too, because what was waited for may never come. */
  endsWait: boolean;
  /** `wait_exact` for another status returns here too. */
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

/** Statuses that callers treat alike. */
export const SANDBOX_STATUS_GROUPS = {
  /** A host works on the sandbox: the host must not be switched off. */
  busy: ['assigned', 'building', 'booting', 'running', 'stopping', 'pausing', 'deleting'],
  /** A start or resume passes through these. */
  starting: ['assigned', 'building', 'booting'],
  /** A fork passes through these before it runs or is paused. */
  forking: ['pending', 'assigned', 'building', 'booting', 'pausing'],
  /** Neither console nor entrypoint print anything more. */
  silent: ['stopped', 'paused', 'deleting', 'deleted', 'failed', 'lost'],
} as const satisfies Record<string, readonly SandboxStatus[]> as Readonly<
  Record<'busy' | 'starting' | 'forking' | 'silent', readonly SandboxStatus[]>
>;

/** What a long poll waits for. */
export interface WaitTarget {
  status: SandboxStatus;
  exact: boolean;
}

/** The target of `?wait=` and `?wait_exact=`; the exact one wins. Null when neither was given: answer at once. */
export function waitTarget(query: { wait?: SandboxStatus; wait_exact?: SandboxStatus }): WaitTarget | null {
  if (query.wait_exact !== undefined) return { status: query.wait_exact, exact: true };
  return query.wait === undefined ? null : { status: query.wait, exact: false };
}

/** Whether a long poll is to be answered at this status. */
export function waitIsOver(target: WaitTarget | null, status: SandboxStatus): boolean {
  if (target === null || target.status === status) return true;
  const facts = SANDBOX_STATUS_FACTS[status];
  return target.exact ? facts.endsWaitExact : facts.endsWait;
}
