/** Periodic work of a control server. */

export interface PeriodicTask {
  /** Lower case with hyphens; unique. It is the lease's key and the metrics' label. */
  readonly name: string;
  /** Pause between the end of one run and the start of the next, in milliseconds, ± 10 % jitter. */
  readonly everyMs: number;
  /**
   * Only one server at a time runs it. A lease saves repeated work; it does not guarantee exclusion (a server can be
   * suspended in the middle of a run), so a leased task must be safe to run twice at once.
   */
  readonly leased: boolean;
  /** A run that takes longer counts as failed, its signal is aborted and its lease ends. Default `TASK_TIMEOUT_MS`. */
  readonly timeoutMs?: number;
  /** May be interrupted anywhere and repeated. The signal is aborted when the server stops or the time limit passes. */
  run(signal: AbortSignal): Promise<void>;
}

export const TASK_TIMEOUT_MS = 60_000;

/**
 * `busy`: the previous run has not ended, although its time limit has passed. `not-leader`: another server holds the lease.
 */
export type TaskOutcome = 'ok' | 'failed' | 'timeout' | 'busy' | 'not-leader';

export interface TaskRun {
  task: string;
  outcome: TaskOutcome;
  /** From start to end, or to the timeout; 0 when nothing ran. */
  seconds: number;
}

/** Counters of one task since the start of this server. */
export interface TaskStats {
  task: string;
  runs: number;
  failures: number;
  /** Of all runs together. */
  seconds: number;
  /** Of the last run. */
  lastSeconds: number;
  /** Milliseconds since the epoch; null before the first success on this server. */
  lastSuccessAt: number | null;
}
