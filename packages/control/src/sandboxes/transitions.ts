/** The life of a sandbox as data: a transition table for `lifecycle/machine.ts`. */
import type { DesiredState, ObservedStatus, SandboxStatus } from '@releap/contract';
import type { SandboxRow } from '@releap/database';
import { defineMachine, type Condition, type Transition as Row } from '../lifecycle/machine.ts';

/** What a row may ask of the sandbox. */
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
  'start_from',
  'pending_fork',
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
  /** Its memory cannot be kept: the opposite of the three above together. */
  unpausable: {
    sql: '(s.volume_count > 0 or s.docker_data_mib is not null or s.gpu_host > 0)',
    holds: unpausable,
    otherwise: 'it can be paused',
  },
  /** No host has said that there is a disk to boot: of a fork, or a restored snapshot, nothing may have been copied. */
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
  wantsRunning: {
    sql: `s.desired = 'running'`,
    holds: (s) => s.desired === 'running',
    otherwise: 'it is not meant to run',
  },
  /** On its way there: it is being paused, or is the fork of a paused source. */
  wantsPaused: {
    sql: `s.desired = 'paused'`,
    holds: (s) => s.desired === 'paused',
    otherwise: 'it is not meant to be paused',
  },
  wantsDeleted: {
    sql: `s.desired = 'deleted'`,
    holds: (s) => s.desired === 'deleted',
    otherwise: 'its host is not to remove it yet',
  },
  /** It is being deleted, and its host keeps it for a fork that was acknowledged before. */
  keptForFork: {
    sql: `s.desired <> 'deleted'`,
    holds: (s) => s.desired !== 'deleted',
    otherwise: 'its host is to remove it already',
  },
  /** Its host has been told to make a fork of it, and has not said yet that the fork has all that it needs. */
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
  /** Its start is a resume: when that does not succeed, it can stay paused. */
  resumes: { sql: RESUMES, holds: resumes, otherwise: 'it is not being resumed' },
  /** Its start boots a disk that it has: when that does not succeed, it can stay stopped. */
  restarts: { sql: RESTARTS, holds: restarts, otherwise: 'it has no disk to go back to' },
  /** It has never run: when its start does not succeed, nothing is left worth keeping. */
  begins: {
    sql: `not (${RESUMES}) and not (${RESTARTS})`,
    holds: (s) => !resumes(s) && !restarts(s),
    otherwise: 'it has run before',
  },
} as const satisfies Record<string, Condition<SandboxFacts>>;
export type ConditionName = keyof typeof CONDITIONS;

/** What a user asks for. */
export type UserEvent = 'stop' | 'start' | 'pause' | 'resume' | 'fork' | 'delete';
/** What a runner reports. */
export type ObserveEvent = `observe:${ObservedStatus}`;
export type SandboxEvent =
  | UserEvent
  | ObserveEvent
  /** The scheduler has found a runner. */
  | 'place'
  /** The scheduler knows that no runner will ever fit. */
  | 'reject'
  /** The time that the present status may last is over. */
  | 'deadline'
  /** Its runner has been silent for too long. */
  | 'runner-lost'
  /** The operator has given its host up for good. */
  | 'host-forgotten'
  /** The pending fork of it has what it needs, or never will. */
  | 'fork-taken'
  /** The platform needs the capacity of a spot sandbox. */
  | 'evict'
  /** Its host is being drained (by force: what cannot be kept is ended too). */
  | 'drain'
  | 'drain-force';

export type Effect =
  /** Its runner is told of it, and may have something of it (has nothing any more). */
  | 'assign'
  | 'release'
  /** Kept memory exists, unless the runner says that it cannot be used. */
  | 'memory'
  /** Kept memory is no more if the runner says so. */
  | 'check-memory'
  /** Kept memory is gone; a start from now on boots the disk. */
  | 'forget-memory'
  /** The start that begins here resumes the kept memory. */
  | 'use-memory'
  /** No fork of it is pending any more. */
  | 'fork-taken'
  | 'evicted';

/** `reclaim`: its runner keeps the disk of a persistent sandbox that has run, and nothing else. */
export type Transition = Row<SandboxStatus, SandboxEvent, ConditionName, DesiredState | 'reclaim', Effect>;

/** On a host, or on the way to one, and not yet being deleted. */
const LIVE = ['assigned', 'building', 'booting', 'running', 'stopping', 'pausing'] as const;
const STARTING = ['assigned', 'building', 'booting'] as const;

// biome-ignore format: a table is read by its rows
export const TRANSITIONS: readonly Transition[] = [
  // On its way to a host.
  { from: ['pending'], on: 'place', to: 'assigned', effects: ['assign'] },
  { from: ['pending'], on: 'reject', to: 'failed', wants: 'deleted', error: 'no host can ever run this sandbox' },
  { from: ['pending'], on: 'deadline', to: 'failed', wants: 'deleted', error: 'no host had room for it in time' },

  // What the host reports of a start.
  { from: ['assigned'], on: 'observe:building', to: 'building', note: 'the root image is being made' },
  { from: ['booting'], on: 'observe:building', when: ['restarts'], to: 'building', note: 'the root image has to be made again' },
  { from: ['assigned', 'building'], on: 'observe:booting', to: 'booting' },
  { from: STARTING, on: 'observe:running', when: ['wantsRunning'], to: 'running', effects: ['forget-memory'] },
  { from: STARTING, on: 'observe:paused', when: ['wantsPaused'], to: 'paused', effects: ['memory'], note: 'fork of a paused source' },
  // A start that does not succeed leads back to where it began, if there is such a place.
  { from: STARTING, on: 'observe:paused', when: ['resumes'], to: 'paused', wants: 'paused', effects: ['memory'], note: 'it could not be resumed' },
  { from: STARTING, on: 'observe:stopped', when: ['persistent'], to: 'stopped', wants: 'stopped', effects: ['forget-memory'], note: 'it could not be started' },
  { from: STARTING, on: 'observe:stopped', when: ['ephemeral'], to: 'failed', wants: 'deleted', error: 'the guest powered itself off' },
  { from: ['booting'], on: 'deadline', when: ['resumes'], to: 'paused', wants: 'paused', effects: ['memory'], error: 'it did not resume in time' },
  { from: ['assigned', 'building'], on: 'deadline', when: ['resumes', 'bootable'], to: 'paused', wants: 'paused', effects: ['memory'], error: 'it did not resume in time' },
  { from: ['assigned', 'building'], on: 'deadline', when: ['resumes', 'diskless'], to: 'failed', wants: 'deleted', error: 'nothing was copied for it in time' },
  { from: STARTING, on: 'deadline', when: ['restarts'], to: 'stopped', wants: 'stopped', error: 'it did not start in time' },
  { from: STARTING, on: 'deadline', when: ['begins'], to: 'failed', wants: 'reclaim', error: 'it did not start in time' },

  // stop and start.
  { from: ['running', ...STARTING], on: 'stop', when: ['persistent'], to: 'stopping', wants: 'stopped', effects: ['forget-memory'] },
  { from: ['stopping', 'stopped'], on: 'stop', when: ['persistent'], to: 'same', note: 'idempotent' },
  { from: ['stopping'], on: 'observe:stopped', to: 'stopped' },
  // Its disk is somewhere between; only its host can tell, and comes back to it.
  { from: ['stopping'], on: 'deadline', to: 'lost', wants: 'same', error: 'it did not stop in time' },
  { from: ['stopped'], on: 'start', when: ['persistent', 'bootable'], to: 'booting', wants: 'running', effects: ['forget-memory'] },
  { from: ['paused'], on: 'start', when: ['persistent'], to: 'booting', wants: 'running', effects: ['forget-memory'], note: 'its memory is discarded' },
  // The guest powered itself off.
  { from: ['running', 'pausing'], on: 'observe:stopped', when: ['persistent'], to: 'stopped', wants: 'stopped', note: 'the guest powered itself off' },
  { from: ['running'], on: 'observe:stopped', when: ['ephemeral'], to: 'failed', wants: 'deleted', error: 'the guest powered itself off' },

  // pause and resume.
  { from: ['running'], on: 'pause', when: ['persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'pausing', wants: 'paused' },
  { from: ['pausing', 'paused'], on: 'pause', when: ['persistent'], to: 'same', note: 'idempotent' },
  { from: ['pausing'], on: 'observe:paused', to: 'paused', effects: ['memory'] },
  { from: ['paused'], on: 'observe:paused', to: 'same', effects: ['check-memory'] },
  { from: ['pausing'], on: 'observe:running', to: 'running', wants: 'running', note: 'it could not be paused, and goes on' },
  { from: ['pausing'], on: 'deadline', to: 'lost', wants: 'same', error: 'it did not pause in time' },
  { from: ['paused'], on: 'resume', when: ['persistent', 'hasMemory'], to: 'booting', wants: 'running', effects: ['use-memory'] },

  // fork: the source stays as it is. The new sandbox begins as CREATIONS says.
  { from: ['running'], on: 'fork', when: ['persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'same' },
  { from: ['paused'], on: 'fork', when: ['persistent', 'noVolumes', 'hasMemory'], to: 'same' },

  // delete works from everywhere.
  { from: ['pending'], on: 'delete', to: 'deleted', wants: 'deleted', note: 'no host has anything of it' },
  { from: LIVE, on: 'delete', when: ['noForkPending'], to: 'deleting', wants: 'deleted' },
  { from: ['paused'], on: 'delete', when: ['noForkPending'], to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest in the background' },
  { from: ['stopped', 'failed', 'lost'], on: 'delete', to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest in the background' },
  // A fork that was acknowledged succeeds all the same: its host keeps the source until then, and nobody pays for it.
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

  // What goes wrong on the host.
  { from: [...LIVE, 'stopped', 'paused'], on: 'observe:failed', to: 'failed', wants: 'reclaim', error: 'its host gave no reason' },

  // The host is gone, and perhaps comes back.
  { from: LIVE, on: 'runner-lost', when: ['ephemeral'], to: 'lost', wants: 'deleted', error: 'its host has not been heard from' },
  { from: LIVE, on: 'runner-lost', when: ['persistent'], to: 'lost', wants: 'same', error: 'its host has not been heard from' },
  { from: ['deleting'], on: 'runner-lost', when: ['wantsDeleted'], to: 'deleted', note: 'its host reclaims the rest when it returns' },
  { from: ['deleting'], on: 'runner-lost', when: ['keptForFork'], to: 'deleted', wants: 'deleted', note: 'its host reclaims the rest when it returns' },
  { from: ['lost'], on: 'observe:building', when: ['persistent', 'wantsRunning'], to: 'building' },
  { from: ['lost'], on: 'observe:booting', when: ['persistent', 'wantsRunning'], to: 'booting' },
  { from: ['lost'], on: 'observe:running', when: ['persistent', 'wantsRunning'], to: 'running', effects: ['forget-memory'] },
  { from: ['lost'], on: 'observe:running', when: ['persistent', 'wantsPaused'], to: 'running', wants: 'running', note: 'it could not be paused, and goes on' },
  { from: ['lost'], on: 'observe:stopped', when: ['persistent'], to: 'stopped', wants: 'stopped', effects: ['forget-memory'] },
  { from: ['lost'], on: 'observe:paused', when: ['persistent', 'wantsPaused'], to: 'paused', effects: ['memory'] },
  { from: ['lost'], on: 'observe:paused', when: ['persistent', 'resumes'], to: 'paused', wants: 'paused', effects: ['memory'], note: 'it could not be resumed' },
  { from: ['lost'], on: 'observe:failed', when: ['persistent'], to: 'failed', wants: 'reclaim', error: 'its host gave no reason' },

  // The host does not come back: the operator has forgotten it.
  { from: [...LIVE, 'stopped', 'paused', 'lost'], on: 'host-forgotten', to: 'failed', wants: 'deleted', effects: ['release'], error: 'its host was forgotten by the operator' },
  { from: ['deleting'], on: 'host-forgotten', to: 'deleted', wants: 'deleted', effects: ['release'] },
  { from: ['failed', 'deleted'], on: 'host-forgotten', to: 'same', effects: ['release'] },

  // The spot tier.
  { from: ['running'], on: 'evict', when: ['spot', 'persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'pausing', wants: 'paused', effects: ['evicted'] },
  { from: ['running'], on: 'evict', when: ['spot', 'persistent', 'unpausable'], to: 'stopping', wants: 'stopped', effects: ['evicted', 'forget-memory'], note: 'its memory cannot be kept' },
  { from: LIVE, on: 'evict', when: ['spot', 'ephemeral'], to: 'deleting', wants: 'deleted', effects: ['evicted'] },

  // The operator empties a host. What is on its way there is taken up as soon as it runs.
  { from: ['running'], on: 'drain', when: ['persistent', 'noVolumes', 'noDockerData', 'noGpus'], to: 'pausing', wants: 'paused' },
  { from: ['running'], on: 'drain', when: ['persistent', 'unpausable'], to: 'stopping', wants: 'stopped', effects: ['forget-memory'], note: 'its memory cannot be kept' },
  { from: LIVE, on: 'drain-force', when: ['ephemeral'], to: 'deleting', wants: 'deleted', error: 'its host was drained' },
];

/** How a sandbox comes to be. */
// biome-ignore format: a table is read by its rows
export const CREATIONS = {
  image: { by: 'POST /vms', status: 'pending', desired: 'running', start_from: 'disk', has_memory: false },
  fullSnapshot: { by: 'POST /vms from a full snapshot', status: 'pending', desired: 'running', start_from: 'memory', has_memory: true },
  // At once on the host of its source: there is nowhere else to take it from.
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

/** Statuses that may not last: each has a deadline, and a row for `deadline` that leaves it. */
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
  // Waiting for room on a host.
  pending: 60_000,
  // The host has been told and has not answered yet.
  assigned: 180_000,
  // Pulling and making a large image from a slow registry.
  building: 15 * 60_000,
  // A cold boot under emulation, with others beside it.
  booting: 180_000,
  stopping: 120_000,
  pausing: 120_000,
  deleting: 120_000,
};

/** Statuses without a network: addresses and port mappings of before are void. */
export const WITHOUT_NETWORK = [
  'stopped',
  'paused',
  'failed',
  'lost',
  'deleted',
] as const satisfies readonly SandboxStatus[];

/** Statuses in which a sandbox takes its guaranteed cores and memory from a host: a lost one may still run there. */
export const OCCUPIES_CPU = [...LIVE, 'deleting', 'lost'] as const satisfies readonly SandboxStatus[];

/** Starting: told apart by its host alone. */
const describe = (event: SandboxEvent, { status }: SandboxFacts): string | undefined =>
  (event === 'start' || event === 'resume') && (STARTING as readonly string[]).includes(status)
    ? `starting already (${status})`
    : undefined;

export const MACHINE = defineMachine<Transition, SandboxFacts>({
  name: 'sandbox',
  transitions: TRANSITIONS,
  conditions: CONDITIONS,
  transient: TRANSIENT,
  // A sandbox that is not persistent will never be stoppable.
  permanent: ['persistent'],
  describe,
});
/** Every event that the table knows. */
export const EVENTS = MACHINE.events;
export const { decide, refusal, writing } = MACHINE;
