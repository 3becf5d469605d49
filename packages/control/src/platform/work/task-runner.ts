/**
 * Runs the periodic tasks of a server. Each has its own timer, error handling and time limit, so that one that throws,
 * hangs or is slow delays no other.
 */
import type { Logger } from 'pino';
import type { Leases } from './leases.ts';
import { settledWithin } from './settled-within.ts';
import {
  TASK_TIMEOUT_MS,
  type PeriodicTask,
  type TaskOutcome,
  type TaskRun,
  type TaskStats,
} from './task.ts';

export interface TaskRunner {
  /** Starts the timers. */
  start(): void;
  /** Runs the named task, or all of them at the same time, and resolves when they have ended. Never rejects. */
  runOnce(name?: string): Promise<void>;
  stats(): TaskStats[];
  /** Aborts running tasks, waits for them for a moment, and releases the leases. */
  close(): Promise<void>;
}

export interface TaskRunnerOptions {
  tasks: readonly PeriodicTask[];
  leases: Omit<Leases, 'lookAgain'>;
  log: Logger;
  /** Called after each run; for metrics. */
  onRun?: (run: TaskRun) => void;
}

const JITTER = 0.1;
/** How long a stopping server waits for tasks that ignore their signal. */
const CLOSE_MS = 5_000;

export function createTaskRunner({ tasks, leases, log, onRun }: TaskRunnerOptions): TaskRunner {
  const runners = new Map<string, TaskTimer>();
  for (const task of tasks) {
    if (runners.has(task.name)) throw new Error(`two periodic tasks are named ${task.name}`);
    runners.set(task.name, new TaskTimer(task, leases, log, onRun ?? (() => undefined)));
  }
  return {
    start() {
      for (const runner of runners.values()) runner.start();
    },
    async runOnce(name) {
      if (name === undefined) {
        await Promise.all([...runners.values()].map((runner) => runner.runOnce()));
        return;
      }
      const runner = runners.get(name);
      if (runner === undefined) throw new Error(`there is no periodic task named ${name}`);
      await runner.runOnce();
    },
    stats: () => [...runners.values()].map((runner) => ({ ...runner.stats })),
    async close() {
      await Promise.all([...runners.values()].map((runner) => runner.close()));
      await leases
        .releaseAll()
        .catch((error: unknown) => log.warn({ err: error }, 'task leases were not released; they expire'));
    },
  };
}

class TaskTimer {
  readonly stats: TaskStats;
  readonly #task: PeriodicTask;
  readonly #leases: TaskRunnerOptions['leases'];
  readonly #log: Logger;
  readonly #onRun: (run: TaskRun) => void;
  readonly #stop = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  /** Resolves when the run ends or its time limit has passed; never rejects. */
  #running: Promise<void> | undefined;
  /** The task's own promise, which may outlast its time limit. */
  #work: Promise<void> | undefined;

  constructor(
    task: PeriodicTask,
    leases: TaskRunnerOptions['leases'],
    log: Logger,
    onRun: (run: TaskRun) => void,
  ) {
    this.#task = task;
    this.#leases = leases;
    this.#log = log;
    this.#onRun = onRun;
    this.stats = {
      task: task.name,
      runs: 0,
      failures: 0,
      seconds: 0,
      lastSeconds: 0,
      lastSuccessAt: null,
    };
  }

  start(): void {
    // Jitter: servers that start together do not stay in step.
    this.#schedule(this.#task.everyMs * Math.random());
  }

  /** A run that starts after this call: one in progress may have read older data. */
  async runOnce(): Promise<void> {
    await this.#running;
    await this.#run(true);
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#stop.abort();
    const running = [this.#running, this.#work].filter((one) => one !== undefined);
    await settledWithin(running, CLOSE_MS);
  }

  #schedule(ms: number): void {
    if (this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      void this.#run().then(() => {
        const jitter = 1 - JITTER + 2 * JITTER * Math.random();
        this.#schedule(this.#task.everyMs * jitter);
      });
    }, ms);
  }

  /** @param isAsked the run was requested, not due: it also asks for a lease that was refused a moment ago */
  #run(isAsked = false): Promise<void> {
    return (this.#running ??= this.#perform(isAsked).finally(() => (this.#running = undefined)));
  }

  async #perform(isAsked: boolean): Promise<void> {
    if (this.#stop.signal.aborted) return;
    const { name, leased } = this.#task;
    if (this.#work !== undefined) {
      this.#finish('busy', 0);
      return;
    }
    const start = performance.now();
    try {
      if (leased && !(await this.#leases.hold(name, isAsked))) {
        this.#finish('not-leader', 0);
        return;
      }
      const outcome = await this.#limited();
      this.#finish(outcome, performance.now() - start);
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      this.#log.error({ err: error, task: name }, 'a periodic task failed and will run again');
      this.#finish('failed', performance.now() - start);
    }
  }

  /** Waits for the work, at most for its time limit. */
  async #limited(): Promise<TaskOutcome> {
    const { name, leased, timeoutMs = TASK_TIMEOUT_MS } = this.#task;
    const ending = new AbortController();
    const onStop = (): void => ending.abort();
    this.#stop.signal.addEventListener('abort', onStop, { once: true });
    const work = this.#task.run(ending.signal);
    const ended = work
      .then(
        () => undefined,
        () => undefined,
      )
      .then(() => {
        this.#work = undefined;
        this.#stop.signal.removeEventListener('abort', onStop);
      });
    this.#work = ended;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<'late'>((resolve) => {
      timer = setTimeout(() => resolve('late'), timeoutMs);
    });
    if ((await Promise.race([ended, late])) !== 'late') {
      clearTimeout(timer);
      await work;
      return 'ok';
    }
    ending.abort(new Error(`task ${name} took longer than ${timeoutMs} ms`));
    this.#log.error(
      { task: name, timeoutMs },
      'a periodic task exceeded its time limit; it runs again when it has ended',
    );
    // Another server may succeed.
    if (leased) await this.#leases.release(name);
    return 'timeout';
  }

  #finish(outcome: TaskOutcome, ms: number): void {
    const { stats } = this;
    if (outcome !== 'not-leader') {
      stats.runs++;
      if (outcome !== 'ok') stats.failures++;
      stats.seconds += ms / 1000;
      stats.lastSeconds = ms / 1000;
      if (outcome === 'ok') stats.lastSuccessAt = Date.now();
    }
    this.#onRun({ task: stats.task, outcome, seconds: ms / 1000 });
  }
}
