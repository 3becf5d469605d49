/** The transition table of sandboxes, for `lifecycle/machine.ts`. */
import type { DesiredState, ObservedStatus, SandboxStatus, CodeOf } from '@releap/contract';
import type { SandboxRow } from '@releap/database';
import { defineMachine, type Condition, type Transition as Row } from '../../platform/lifecycle/machine.ts';

/** Conditions of the table's rows. */
export const FACT_COLUMNS = [
  'status',
  'desired',
  'persistent',
  'spot',
  'volume_count',
  'docker_data_mib',
  'gpu_host',
  'manifest_name',
  'has_memory',
  'memory_blocked',
  'start_from',
  'pending_fork',
  'move_id',
] as const satisfies readonly (keyof SandboxRow)[];
export type SandboxFacts = Pick<SandboxRow, (typeof FACT_COLUMNS)[number]>;

const resumes = (s: SandboxFacts): boolean => s.desired === 'running' && s.start_from === 'memory';
const restarts = (s: SandboxFacts): boolean =>
  s.desired === 'running' && s.start_from === 'disk' && s.persistent && s.manifest_name !== null;
const unpausable = (s: SandboxFacts): boolean =>
  s.volume_count > 0 || s.docker_data_mib !== null || s.gpu_host > 0;
const RESUMES = `s.desired = 'running' and s.start_from = 'memory'`;
const RESTARTS = `s.desired = 'running' and s.start_from = 'disk' and s.persistent and s.manifest_name is not null`;

export const CONDITIONS = {
  persistent: {
    sql: 's.persistent',
    holds: (s) => s.persistent,
    otherwise: 'it is not persistent (create it with persistent: true)',
  },
  ephemeral: { sql: 'not s.persistent', holds: (s) => !s.persistent, otherwise: 'it is persistent' },
  spot: { sql: 's.spot', holds: (s) => s.spot, otherwise: 'it is not in the spot tier' },
  noVolumes: {
    sql: 's.volume_count = 0',
    holds: (s) => s.volume_count === 0,
    otherwise: 'it has volumes attached',
  },
  noDockerData: {
    sql: 's.docker_data_mib is null',
    holds: (s) => s.docker_data_mib === null,
    otherwise: 'it has a Docker data device',
  },
  noGpus: { sql: 's.gpu_host = 0', holds: (s) => s.gpu_host === 0, otherwise: 'it has GPUs' },
  /** Its memory cannot be saved: the negation of the three above. */
  unpausable: {
    sql: '(s.volume_count > 0 or s.docker_data_mib is not null or s.gpu_host > 0)',
    holds: unpausable,
    otherwise: 'it can be paused',
  },
  /** No host has reported a bootable disk: of a fork or a restored snapshot, nothing may have been copied yet. */
  diskless: {
    sql: 's.manifest_name is null',
    holds: (s) => s.manifest_name === null,
    otherwise: 'it has a disk of its own',
  },
  bootable: {
    sql: 's.manifest_name is not null',
    holds: (s) => s.manifest_name !== null,
    otherwise: 'it has no bootable file system',
  },
  hasMemory: {
    sql: 's.has_memory',
    holds: (s) => s.has_memory,
    otherwise: 'it has no saved memory (use start)',
  },
  memoryNotBlocked: {
    sql: 's.memory_blocked is null',
    holds: (s) => s.memory_blocked === null,
    otherwise: (s) => s.memory_blocked ?? 'its memory cannot be resumed on its host',
  },
  wantsRunning: {
    sql: `s.desired = 'running'`,
    holds: (s) => s.desired === 'running',
    otherwise: 'its desired state is not running',
  },
  /** Becoming paused: a pause in progress, or the fork of a paused source. */
  wantsPaused: {
    sql: `s.desired = 'paused'`,
    holds: (s) => s.desired === 'paused',
    otherwise: 'its desired state is not paused',
  },
  wantsDeleted: {
    sql: `s.desired = 'deleted'`,
    holds: (s) => s.desired === 'deleted',
    otherwise: 'its host must not remove it yet',
  },
  /** It is being deleted, and its host keeps it for a fork that was acknowledged before. */
  keptForFork: {
    sql: `s.desired <> 'deleted'`,
    holds: (s) => s.desired !== 'deleted',
    otherwise: 'its host is already removing it',
  },
  /** Its host has been assigned a fork of it, and has not yet reported the fork as captured. */
  forkPending: {
    sql: 's.pending_fork is not null',
    holds: (s) => s.pending_fork !== null,
    otherwise: 'no fork of it is pending',
  },
  noForkPending: {
    sql: 's.pending_fork is null',
    holds: (s) => s.pending_fork === null,
    otherwise: 'a fork of it is pending',
  },
  /** It is on its way to another host, which gets what its host has now. */
  moving: {
    sql: 's.move_id is not null',
    holds: (s) => s.move_id !== null,
    otherwise: 'it is not being moved',
  },
  notMoving: {
    sql: 's.move_id is null',
    holds: (s) => s.move_id === null,
    otherwise: 'it is being moved to another host: try again in a moment',
  },
  /** Its start is a resume: if that fails, it returns to paused. */
  resumes: { sql: RESUMES, holds: resumes, otherwise: 'it is not being resumed' },
  /** Its start boots its existing disk: if that fails, it returns to stopped. */
  restarts: { sql: RESTARTS, holds: restarts, otherwise: 'it has no disk from an earlier run' },
  /** It has never run: if its start fails, there is nothing to keep. */
  firstStart: {
    sql: `not (${RESUMES}) and not (${RESTARTS})`,
    holds: (s) => !resumes(s) && !restarts(s),
    otherwise: 'it has run before',
  },
} as const satisfies Record<string, Condition<SandboxFacts>>;
export type ConditionName = keyof typeof CONDITIONS;

/** Requested by a client. */
export type UserEvent = 'stop' | 'start' | 'pause' | 'resume' | 'fork' | 'delete';
/** Reported by a runner. */
export type ObserveEvent = `observe:${ObservedStatus}`;
export type SandboxEvent =
  | UserEvent
  | ObserveEvent
  /** The scheduler has found a runner. */
  | 'place'
  /** No known runner can ever fit it. */
  | 'reject'
  /** The deadline of the present status has passed. */
  | 'deadline'
  /** Its runner has been silent for too long. */
  | 'runner-lost'
  /** The operator has forgotten its host. */
  | 'host-forgotten'
  /** Its pending fork has been captured or has failed. */
  | 'fork-taken'
  /** The scheduler needs the capacity of a spot sandbox. */
  | 'evict'
  /** Its host is being drained (by force: ephemeral sandboxes are deleted too). */
  | 'drain'
  | 'drain-force'
  /** Its move to another host begins, has succeeded, or has ended without that. */
  | 'move'
  | 'moved'
  | 'move-failed';

export type Effect =
  /** Sets (clears) `assigned_to_runner`, the column `held`: its runner may have data of it. */
  | 'assign'
  | 'release'
  /** Saved memory exists, unless the runner reports it as unusable; it may be blocked. */
  | 'memory'
  /** Clears saved memory if the runner reports it as unusable, and notes whether it is blocked. */
  | 'check-memory'
  /** Discards saved memory; later starts boot the disk. */
  | 'forget-memory'
  /** This start resumes the saved memory. */
  | 'use-memory'
  /** Clears the pending fork. */
  | 'fork-taken'
  | 'evicted'
  /** Notes the move, or clears it. */
  | 'move'
  | 'end-move'
  /** Its host is another one. */
  | 'relocate';

/** `reclaim`: its runner keeps only the disk of a persistent sandbox that has run. */
export type Transition = Row<SandboxStatus, SandboxEvent, ConditionName, DesiredState | 'reclaim', Effect>;

/** Assigned to a host and not being deleted. */
const LIVE = ['assigned', 'building', 'booting', 'running', 'stopping', 'pausing'] as const;
const STARTING = ['assigned', 'building', 'booting'] as const;

// biome-ignore format: one row per line
export const TRANSITIONS: readonly Transition[] = [
  // Placement.
  { from: ['pending'], on: 'place', to: 'assigned', effects: ['assign'] },
  { from: ['pending'], on: 'reject', to: 'failed', wants: 'deleted', error: 'no host can ever run this sandbox' },
  { from: ['pending'], on: 'deadline', to: 'failed', wants: 'deleted', error: 'no host had the capacity for it in time' },

  // Start.
  { from: ['assigned'], on: 'observe:building', to: 'building', note: 'the root image is being built' },
  { from: ['booting'], on: 'observe:building', when: ['restarts'], to: 'building', note: 'the root image has to be rebuilt' },
  { from: ['assigned', 'building'], on: 'observe:booting', to: 'booting' },
  { from: STARTING, on: 'observe:running', when: ['wantsRunning'], to: 'running', effects: ['forget-memory'] },
  { from: STARTING, on: 'observe:paused', when: ['wantsPaused'], to: 'paused', effects: ['memory'], note: 'fork of a paused source' },
  // A failed start returns to the status before it, if there is one.
  { from: STARTING, on: 'observe:paused', when: ['resumes'], to: 'paused', wants: 'paused', effects: ['memory'], note: 'it could not be resumed' },
  { from: STARTING, on: 'observe:stopped', when: ['persistent'], to: 'stopped', wants: 'stopped', effects: ['forget-memory'], note: 'it could not be started' },
  { from: STARTING, on: 'observe:stopped', when: ['ephemeral'], to: 'failed', wants: 'deleted', error: 'the guest powered itself off' },
  { from: ['booting'], on: 'deadline', when: ['resumes'], to: 'paused', wants: 'paused', effects: ['memory'], error: 'it did not resume in time' },
  { from: ['assigned', 'building'], on: 'deadline', when: ['resumes', 'bootable'], to: 'paused', wants: 'paused', effects: ['memory'], error: 'it did not resume in time' },
  { from: ['assigned', 'building'], on: 'deadline', when: ['resumes', 'diskless'], to: 'failed', wants: 'deleted', error: 'nothing was copied for it in time' },
  { from: STARTING, on: 'deadline', when: ['restarts'], to: 'stopped', wants: 'stopped', error: 'it did not start in time' },
  { from: STARTING, on: 'deadline', when: ['firstStart'], to: 'failed', wants: 'reclaim', error: 'it did not start in time' },

  // stop and start.
  { from: ['running', ...STARTING], on: 'stop', when: ['persistent'], to: 'stopping', wants: 'stopped', effects: ['forget-memory'] },
  { from: ['stopping', 'stopped'], on: 'stop', when: ['persistent'], to: 'same', note: 'idempotent' },
  { from: ['stopping'], on: 'observe:stopped', to: 'stopped' },
  // The state of its disk is unknown until its host reports it.
  { from: ['stopping'], on: 'deadline', to: 'lost', wants: 'same', error: 'it did not stop in time' },
  { from: ['stopped'], on: 'start', when: ['persistent', 'bootable', 'notMoving'], to: 'booting', wants: 'running', effects: ['forget-memory'] },
  { from: ['paused'], on: 'start', when: ['persistent', 'notMoving'], to: 'booting', wants: 'running', effects: ['forget-memory'], note: 'its memory is discarded' },
  // The guest powered itself off.
  { from: ['running', 'pausing'], on: 'observe:stopped', when: ['persistent'], to: 'stopped', wants: 'stopped', note: 'the guest powered itself off' },
  { from: ['running'], on: 'observe:stopped', when: ['ephemeral'], to: 'failed', wants: 'deleted', error: 'the guest powered itself off' },

  // pause and resume.
  { from: ['running'], on: 'pause', when: ['persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'pausing', wants: 'paused' },
  { from: ['pausing', 'paused'], on: 'pause', when: ['persistent'], to: 'same', note: 'idempotent' },
  { from: ['pausing'], on: 'observe:paused', to: 'paused', effects: ['memory'] },
  { from: ['paused'], on: 'observe:paused', to: 'same', effects: ['check-memory'] },
  { from: ['pausing'], on: 'observe:running', to: 'running', wants: 'running', note: 'it could not be paused, and continues to run' },
  { from: ['pausing'], on: 'deadline', to: 'lost', wants: 'same', error: 'it did not pause in time' },
  { from: ['paused'], on: 'resume', when: ['persistent', 'hasMemory', 'memoryNotBlocked', 'notMoving'], to: 'booting', wants: 'running', effects: ['use-memory'] },

  // fork: the source does not change. The child's first status is in CREATIONS.
  { from: ['running'], on: 'fork', when: ['persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'same' },
  { from: ['paused'], on: 'fork', when: ['persistent', 'noVolumes', 'hasMemory', 'notMoving'], to: 'same' },

  // delete is possible in every status.
  { from: ['pending'], on: 'delete', to: 'deleted', wants: 'deleted', note: 'it was never placed' },
  { from: LIVE, on: 'delete', when: ['noForkPending'], to: 'deleting', wants: 'deleted' },
  { from: ['paused'], on: 'delete', when: ['noForkPending'], to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest in the background' },
  { from: ['stopped', 'failed', 'lost'], on: 'delete', to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest in the background' },
  // A fork that was acknowledged still succeeds: its host keeps the source until then, and it is not charged.
  { from: [...LIVE, 'paused'], on: 'delete', when: ['forkPending'], to: 'deleting', note: 'its host keeps it for the pending fork' },
  { from: ['deleting'], on: 'fork-taken', when: ['keptForFork'], to: 'same', wants: 'deleted', effects: ['fork-taken'] },
  { from: ['deleting'], on: 'fork-taken', when: ['wantsDeleted'], to: 'same', effects: ['fork-taken'] },
  { from: ['pending', ...LIVE, 'stopped', 'paused', 'failed', 'lost', 'deleted'], on: 'fork-taken', to: 'same', effects: ['fork-taken'] },
  { from: ['deleting', 'deleted'], on: 'delete', to: 'same', note: 'idempotent' },
  { from: ['deleting'], on: 'observe:deleted', when: ['wantsDeleted'], to: 'deleted', effects: ['release'] },
  { from: ['deleting'], on: 'observe:deleted', when: ['keptForFork'], to: 'deleted', wants: 'deleted', effects: ['release'] },
  { from: ['deleting'], on: 'deadline', when: ['wantsDeleted'], to: 'deleted', note: 'its host reclaims the rest when it can' },
  { from: ['deleting'], on: 'deadline', when: ['keptForFork'], to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest when it can' },
  { from: ['deleted', 'failed'], on: 'observe:deleted', to: 'same', effects: ['release'] },
  { from: ['lost'], on: 'observe:deleted', when: ['ephemeral'], to: 'same', effects: ['release'] },
  { from: ['lost'], on: 'observe:deleted', when: ['persistent'], to: 'failed', wants: 'deleted', effects: ['release'], error: 'its host no longer has it' },
  { from: [...LIVE, 'stopped', 'paused'], on: 'observe:deleted', to: 'failed', wants: 'deleted', effects: ['release'], error: 'its host no longer has it' },

  // Failures on the host.
  { from: [...LIVE, 'stopped', 'paused'], on: 'observe:failed', to: 'failed', wants: 'reclaim', error: 'its host gave no reason' },

  // The host is lost, and may return.
  { from: LIVE, on: 'runner-lost', when: ['ephemeral'], to: 'lost', wants: 'deleted', error: 'its host has not been heard from' },
  { from: LIVE, on: 'runner-lost', when: ['persistent'], to: 'lost', wants: 'same', error: 'its host has not been heard from' },
  { from: ['deleting'], on: 'runner-lost', when: ['wantsDeleted'], to: 'deleted', note: 'its host reclaims the rest when it returns' },
  { from: ['deleting'], on: 'runner-lost', when: ['keptForFork'], to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest when it returns' },
  { from: ['lost'], on: 'observe:building', when: ['persistent', 'wantsRunning'], to: 'building' },
  { from: ['lost'], on: 'observe:booting', when: ['persistent', 'wantsRunning'], to: 'booting' },
  { from: ['lost'], on: 'observe:running', when: ['persistent', 'wantsRunning'], to: 'running', effects: ['forget-memory'] },
  { from: ['lost'], on: 'observe:running', when: ['persistent', 'wantsPaused'], to: 'running', wants: 'running', note: 'it could not be paused, and continues to run' },
  { from: ['lost'], on: 'observe:stopped', when: ['persistent'], to: 'stopped', wants: 'stopped', effects: ['forget-memory'] },
  { from: ['lost'], on: 'observe:paused', when: ['persistent', 'wantsPaused'], to: 'paused', effects: ['memory'] },
  { from: ['lost'], on: 'observe:paused', when: ['persistent', 'resumes'], to: 'paused', wants: 'paused', effects: ['memory'], note: 'it could not be resumed' },
  { from: ['lost'], on: 'observe:failed', when: ['persistent'], to: 'failed', wants: 'reclaim', error: 'its host gave no reason' },

  // The operator has forgotten the host.
  { from: [...LIVE, 'stopped', 'paused', 'lost'], on: 'host-forgotten', to: 'failed', wants: 'deleted', effects: ['release'], error: 'its host was forgotten by the operator' },
  { from: ['deleting'], on: 'host-forgotten', to: 'deleted', wants: 'deleted', effects: ['release'] },
  { from: ['failed', 'deleted'], on: 'host-forgotten', to: 'same', effects: ['release'] },

  // The spot tier.
  { from: ['running'], on: 'evict', when: ['spot', 'persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'pausing', wants: 'paused', effects: ['evicted'] },
  { from: ['running'], on: 'evict', when: ['spot', 'persistent', 'unpausable'], to: 'stopping', wants: 'stopped', effects: ['evicted', 'forget-memory'], note: 'its memory cannot be saved' },
  { from: LIVE, on: 'evict', when: ['spot', 'ephemeral'], to: 'deleting', wants: 'deleted', effects: ['evicted'] },

  // Drain. A sandbox that is starting there is drained as soon as it runs.
  { from: ['running'], on: 'drain', when: ['persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'pausing', wants: 'paused' },
  { from: ['running'], on: 'drain', when: ['persistent', 'unpausable'], to: 'stopping', wants: 'stopped', effects: ['forget-memory'], note: 'its memory cannot be saved' },
  { from: LIVE, on: 'drain-force', when: ['ephemeral'], to: 'deleting', wants: 'deleted', error: 'its host was drained' },

  // Moves to another host. Each step is a new generation: a report of an earlier one is of another host, or of before the move.
  { from: ['stopped', 'paused'], on: 'move', when: ['persistent', 'bootable', 'noForkPending', 'notMoving'], to: 'same', wants: 'same', effects: ['move'] },
  { from: ['stopped', 'paused'], on: 'moved', when: ['moving'], to: 'same', wants: 'same', effects: ['relocate', 'end-move'] },
  { from: ['pending', ...LIVE, 'stopped', 'paused', 'failed', 'lost', 'deleting', 'deleted'], on: 'move-failed', when: ['moving'], to: 'same', wants: 'same', effects: ['end-move'] },
];

/** The first status of a sandbox, by its source. */
// biome-ignore format: one row per line
export const CREATIONS = {
  image: { by: 'POST /vms', status: 'pending', desired: 'running', start_from: 'disk', has_memory: false },
  fullSnapshot: { by: 'POST /vms from a full snapshot', status: 'pending', desired: 'running', start_from: 'memory', has_memory: true },
  // Placed at once on the host of its source, the only one that has its memory and disk.
  runningSource: { by: 'fork of a running source', status: 'assigned', desired: 'running', start_from: 'memory', has_memory: true },
  pausedSource: { by: 'fork of a paused source', status: 'assigned', desired: 'paused', start_from: 'disk', has_memory: true },
} as const satisfies Record<string, Creation>;
export type CreationName = keyof typeof CREATIONS;
interface Creation {
  by: string;
  status: SandboxStatus;
  desired: DesiredState;
  start_from: 'disk' | 'memory';
  has_memory: boolean;
}

/** Transient statuses: each has a deadline, and a row for `deadline` that leaves it. */
export const TRANSIENT = [
  'pending',
  'assigned',
  'building',
  'booting',
  'stopping',
  'pausing',
  'deleting',
] as const;
export type TransientStatus = (typeof TRANSIENT)[number];

/** Longest stay in each transient status, in milliseconds. */
export type StateDeadlines = Record<TransientStatus, number>;
export const STATE_DEADLINES: StateDeadlines = {
  // Waiting for capacity.
  pending: 60_000,
  // Assigned, without an observation yet.
  assigned: 180_000,
  // Pulling and building a large image from a slow registry.
  building: 15 * 60_000,
  // A cold boot under emulation, with others at the same time.
  booting: 180_000,
  stopping: 120_000,
  pausing: 120_000,
  deleting: 120_000,
};

/** Statuses without a network: earlier addresses and port mappings are invalid. */
export const WITHOUT_NETWORK = [
  'stopped',
  'paused',
  'failed',
  'lost',
  'deleted',
] as const satisfies readonly SandboxStatus[];

/** Statuses in which a sandbox's cores and memory are allocated on its host: a lost one may still run there. */
export const OCCUPIES_CPU = [...LIVE, 'deleting', 'lost'] as const satisfies readonly SandboxStatus[];

/** Starting: only the host distinguishes these. */
const describe = (event: SandboxEvent, { status }: SandboxFacts): string | undefined =>
  (event === 'start' || event === 'resume') && (STARTING as readonly string[]).includes(status)
    ? `starting already (${status})`
    : undefined;

export const MACHINE = defineMachine<Transition, SandboxFacts>({
  name: 'sandbox',
  table: 'sandboxes',
  transitions: TRANSITIONS,
  conditions: CONDITIONS,
  transient: TRANSIENT,
  // A sandbox that is not persistent can never be stopped.
  permanent: ['persistent'],
  describe,
});
/** Every event of the table. */
export const EVENTS = MACHINE.events;
export const { decide, refusal, writing } = MACHINE;

/** The code of a refusal: `not_persistent` where no status change could help, `concurrent_change` where it passes by itself. */
export function refusalCode(event: SandboxEvent, facts: SandboxFacts): CodeOf<409> {
  const why = refusal(event, facts);
  if (why === CONDITIONS.notMoving.otherwise) return 'concurrent_change';
  return why === CONDITIONS.persistent.otherwise ? 'not_persistent' : 'wrong_state';
}
