/**
 * What a runner does with a sandbox, as data: from desired and observed state to the next step. `sandbox-work.ts` performs
 * the steps; docs/lifecycle.md is generated from these tables. In each table the first row that matches wins.
 */
import type { DesiredState, ObservedStatus } from '@releap/contract';

/** Facts about a sandbox on this machine. */
export interface Facts {
  desired: DesiredState;
  /** Source of `running`. */
  startFrom: 'disk' | 'memory';
  /** Status that was recorded and reported last. */
  status: ObservedStatus;
  persistent: boolean;
  /** `unknown`: the runner has just started. `lost`: it was not found, and its remaining resources must be removed. */
  vm: 'live' | 'unknown' | 'lost' | 'none';
  /** It has a disk on this machine. Not checked while its VM is live. */
  disk: boolean;
  /**
   * A suspend image that was not consumed. `blocked`: it is whole, and this host cannot resume it as it is now. `unusable`: it
   * is damaged.
   */
  memory: 'none' | 'saved' | 'blocked' | 'unusable';
  /** Its VM has consumed the suspend image. */
  memoryConsumed: boolean;
  /** The root image that its disk is based on is known. */
  hasManifest: boolean;
  /** It has run on this machine. */
  hasRun: boolean;
  /** Origin of the copy, until control knows that it has a disk of its own. */
  origin: 'none' | 'fork' | 'snapshot' | 'move';
  hostRestarted: boolean;
  canPause: boolean;
}

type Pattern<F> = { readonly [K in keyof F]?: F[K] | readonly F[K][] };

export interface Row<F, To> {
  readonly when: Pattern<F>;
  readonly to: To;
  readonly why: string;
}

/** The first row that matches. @throws when there is none; a test proves that there always is one */
export function match<F extends object, To>(table: readonly Row<F, To>[], facts: F): To {
  const row = table.find(({ when }) => matches(when, facts));
  if (row === undefined) throw new Error(`no row for ${JSON.stringify(facts)}`);
  return row.to;
}

export function matches<F extends object>(when: Pattern<F>, facts: F): boolean {
  return (Object.keys(when) as (keyof F)[]).every((name) => {
    const wanted = when[name];
    return Array.isArray(wanted) ? wanted.includes(facts[name]) : wanted === facts[name];
  });
}

export type RecoveryStep =
  /** Adopt the VM of the previous runner, and resume its guest. */
  | 'adopt'
  /** Remove the VM and its resources; persistent data stays. */
  | 'remove-vm'
  /** Remove everything: it is copied from its origin again. */
  | 'start-over'
  | 'report-stopped'
  | 'report-resume-failed'
  | 'report-lost'
  /** Wait for an assignment. */
  | 'keep';

const RAN = ['running', 'pausing', 'stopping'] as const;
const SETTLED = ['stopped', 'paused', 'failed', 'deleted'] as const;

/** After a start of the runner, whatever step the previous runner was in. */
export const RECOVERY: readonly Row<Facts, RecoveryStep>[] = [
  { when: { vm: 'live' }, to: 'keep', why: 'its VM was found' },
  {
    when: { vm: 'unknown', persistent: false, status: 'running' },
    to: 'adopt',
    why: 'a VM outlives its runner',
  },
  {
    when: { vm: 'unknown', persistent: true, memory: 'none', status: RAN },
    to: 'adopt',
    why: 'a pause that has not published its image, and a stop, have not ended the VM yet',
  },
  {
    when: { vm: 'unknown', persistent: true, memory: 'none', memoryConsumed: true, status: 'booting' },
    to: 'adopt',
    why: 'its memory is in that VM and nowhere else',
  },
  { when: { vm: 'unknown', persistent: false, status: SETTLED }, to: 'keep', why: 'it has no VM' },
  {
    when: { vm: ['unknown', 'lost'] },
    to: 'remove-vm',
    why: 'with a suspend image, the VM has not run since; otherwise it was not complete, or is gone',
  },
  {
    when: { persistent: true, status: 'booting', origin: 'fork', hasRun: false },
    to: 'start-over',
    why: "the memory of its source went with the previous runner's copy",
  },
  {
    when: {
      persistent: true,
      status: 'booting',
      origin: ['snapshot', 'move'],
      hasManifest: false,
      hasRun: false,
    },
    to: 'start-over',
    why: 'how much of the snapshot was copied is unknown',
  },
  {
    when: { persistent: true, status: 'stopping', memory: 'none' },
    to: 'report-stopped',
    why: 'its VM has ended',
  },
  {
    when: { persistent: true, status: 'booting', memoryConsumed: true, memory: 'none' },
    to: 'report-resume-failed',
    why: 'its VM ended after its memory was used',
  },
  { when: { status: ['running', 'pausing'] }, to: 'report-lost', why: 'its VM has ended' },
  { when: {}, to: 'keep', why: 'whatever step this was, it is begun again when control says so' },
];

export type ConvergeStep =
  | 'destroy'
  | 'report-running'
  /** Copies the disk, and the memory if there is one, of its source sandbox or snapshot. */
  | 'copy-origin'
  | 'resume'
  | 'boot'
  | 'shut-down'
  /** Flushes the dirty pages of the suspend image to the disk if possible, and removes it. */
  | 'discard-memory'
  | 'report-stopped'
  | 'refuse-pause'
  | 'suspend'
  | 'report-paused';

/** Towards the desired state, after `RECOVERY`. Steps are performed until one of `LAST_STEPS` was. */
export const CONVERGENCE: readonly Row<Facts, ConvergeStep>[] = [
  { when: { desired: 'deleted' }, to: 'destroy', why: 'from every state' },
  { when: { desired: 'running', vm: 'live' }, to: 'report-running', why: '' },
  {
    when: {
      desired: ['running', 'paused'],
      vm: 'none',
      persistent: true,
      origin: ['fork', 'snapshot'],
      hasManifest: false,
      disk: false,
    },
    to: 'copy-origin',
    why: 'it has nothing of its own yet; the fork of a running sandbox has a live VM afterwards',
  },
  {
    when: { vm: 'none', persistent: true, origin: 'move', hasManifest: false, disk: false },
    to: 'copy-origin',
    why: 'it is on its way from another host, which removes its own copy only when this one was reported',
  },
  { when: { desired: 'running', startFrom: 'memory' }, to: 'resume', why: 'the VM consumes the image' },
  { when: { desired: 'running' }, to: 'boot', why: 'a suspend image is discarded first' },
  { when: { desired: 'stopped', vm: 'live' }, to: 'shut-down', why: 'the guest writes its files first' },
  {
    when: { desired: 'stopped', memory: ['saved', 'blocked', 'unusable'] },
    to: 'discard-memory',
    why: 'a stopped sandbox has a disk and no memory',
  },
  { when: { desired: 'stopped' }, to: 'report-stopped', why: '' },
  {
    when: { desired: 'paused', vm: 'live', canPause: false },
    to: 'refuse-pause',
    why: 'the data device of Docker is not captured',
  },
  { when: { desired: 'paused', vm: 'live' }, to: 'suspend', why: '' },
  { when: { desired: 'paused' }, to: 'report-paused', why: '' },
];

/** Steps after which the sandbox has the desired status, or another one because that is impossible. */
export const LAST_STEPS: ReadonlySet<RecoveryStep | ConvergeStep> = new Set([
  'keep',
  'start-over',
  'destroy',
  'refuse-pause',
  'suspend',
  'report-running',
  'report-stopped',
  'report-paused',
  'report-resume-failed',
  'report-lost',
] as const);

/** Why a sandbox does not run. */
export type Cause =
  | 'stopped'
  | 'paused'
  | 'boot-failed'
  | 'resume-failed'
  | 'suspend-failed'
  | 'origin-failed'
  /** Its VM ended while this runner was attached. */
  | 'vm-ended'
  /** Its VM ended while no runner was attached. */
  | 'vm-lost'
  /** The service is stopping. */
  | 'drained';

export interface OutcomeFacts
  extends Pick<Facts, 'persistent' | 'disk' | 'memory' | 'hasManifest' | 'hostRestarted'> {
  cause: Cause;
  /** The guest has powered off: the VMM exited normally. */
  guestEnded: boolean;
}

export interface Outcome {
  status: 'stopped' | 'paused' | 'failed';
  /** Reported instead of the cause. */
  error?: string;
  /** There is no suspend image, or it is damaged. */
  memoryLost?: true;
  /** There is a suspend image, which this host cannot resume as it is now. */
  memoryBlocked?: true;
}

export const DISK_GONE = 'its disk is not on this machine any more';

const BOOTABLE = { persistent: true, hasManifest: true, disk: true } as const;

/** The status to report for a sandbox whose VM has ended. Removes nothing. */
export const OUTCOMES: readonly Row<OutcomeFacts, Outcome>[] = [
  { when: { cause: 'origin-failed' }, to: { status: 'failed' }, why: 'nothing of it has ever been here' },
  {
    when: { cause: ['paused', 'resume-failed'], disk: false },
    to: { status: 'failed', error: DISK_GONE },
    why: '',
  },
  {
    when: { cause: ['paused', 'resume-failed'], memory: ['none', 'unusable'] },
    to: { status: 'paused', memoryLost: true },
    why: 'it can be started from its disk',
  },
  {
    when: { cause: ['paused', 'resume-failed'], memory: 'blocked' },
    to: { status: 'paused', memoryBlocked: true },
    why: 'it can be resumed once the host is as it was',
  },
  {
    when: { cause: ['paused', 'resume-failed', 'suspend-failed', 'vm-lost', 'drained'], memory: 'saved' },
    to: { status: 'paused' },
    why: 'a complete suspend image is the truth, however far the runner had come',
  },
  {
    when: { cause: 'stopped', persistent: true, hasManifest: true, disk: false },
    to: { status: 'failed', error: DISK_GONE },
    why: '',
  },
  { when: { cause: 'stopped' }, to: { status: 'stopped' }, why: '' },
  { when: { cause: ['boot-failed', 'drained'], ...BOOTABLE }, to: { status: 'stopped' }, why: '' },
  {
    when: { cause: ['vm-ended', 'suspend-failed'], guestEnded: true, ...BOOTABLE },
    to: { status: 'stopped' },
    why: 'a guest that has powered itself off has lost nothing',
  },
  {
    when: { cause: 'vm-lost', hostRestarted: true, ...BOOTABLE },
    to: { status: 'stopped', error: 'its host was restarted' },
    why: 'its disk is what a power failure leaves',
  },
  {
    when: {},
    to: { status: 'failed' },
    why: 'what it had not written is lost; the disk of a persistent sandbox stays until it is deleted',
  },
];
