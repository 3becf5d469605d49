import { spawn, type ChildProcess } from 'node:child_process';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { programOf } from '@releap/runner/program';
import type { Logger } from 'pino';
import type { LogAggregator } from '../log/log-aggregator.ts';
import { isProcessMessage, type SupervisorMessage } from './messages.ts';

const BACKOFF_FIRST_MS = 250;
const BACKOFF_MAX_MS = 30_000;
/** A process that ran this long is restarted without a growing delay. */
const STEADY_MS = 60_000;
/** Failures before the first start after which the start of the service fails. */
const FIRST_START_ATTEMPTS = 3;
const FINISHED = 'exit code 0';
/** Of a deadline's time. */
const TICK_MS = 1_000;
/**
 * Most of V8's young generation, in MiB: half of the space that it copies between. By default it grows to 16 and stays
 * there, which is most of the memory of a process that has little to do.
 */
const YOUNG_MAX_MIB = 2;

export interface ManagedProcessOptions {
  /** `control`, `runner`, `gateway`. */
  role: string;
  /** Path of the program, given to Node with the role as its argument. */
  program: string;
  env: Record<string, string | undefined>;
  logs: LogAggregator;
  log: Logger;
  /** What it creates outlives it: a stop that finds it dead starts it once more to clean up. */
  cleanupOnStop?: boolean;
}

/** One process of the service, restarted until it is stopped. */
export class ManagedProcess {
  readonly role: string;
  /** Resolves when the process has started for the first time; rejects when it cannot. */
  readonly started: Promise<Record<string, string>>;
  readonly #options: ManagedProcessOptions;
  readonly #stopping = new AbortController();
  readonly #first = Promise.withResolvers<Record<string, string>>();
  readonly #running: Promise<void>;
  #child: ChildProcess | undefined;
  #hasStarted = false;
  #isLinked = false;
  /** Whether a process that did not finish must be started again to clean up. */
  #mustCleanUp = false;

  constructor(options: ManagedProcessOptions) {
    this.role = options.role;
    this.#options = options;
    this.started = this.#first.promise;
    // The caller may fail before it awaits this.
    this.started.catch(() => undefined);
    this.#running = this.#keepRunning();
  }

  /** Whether the control plane has known a process of this service run. */
  get isLinked(): boolean {
    return this.#isLinked;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  /**
   * Asks it to finish; kills it at the deadline.
   * @param keep leave its resources (sandboxes) to a later run
   * @returns whether it finished before the deadline
   */
  async stop(deadlineMs: number, keep = false): Promise<boolean> {
    this.#mustCleanUp = !keep && this.#options.cleanupOnStop === true;
    this.#stopping.abort();
    if (!keep && this.#child?.connected === true) this.#askToStop();
    else this.#child?.kill('SIGTERM');
    const timer = new AbortController();
    const late = elapsed(deadlineMs, timer.signal).then(
      () => true,
      () => false,
    );
    const overdue = await Promise.race([this.#running.then(() => false), late]);
    timer.abort();
    if (overdue) {
      this.#options.log.error({ deadline_ms: deadlineMs }, `${this.role} does not stop and is killed`);
      this.kill();
      await this.#running;
    }
    return !overdue;
  }

  kill(): void {
    this.#mustCleanUp = false;
    this.#stopping.abort();
    this.#child?.kill('SIGKILL');
  }

  #askToStop(): void {
    const message: SupervisorMessage = { type: 'stop' };
    this.#child?.send(message, () => undefined);
  }

  async #keepRunning(): Promise<void> {
    let failures = 0;
    const stopped = this.#stopping.signal;
    while (!stopped.aborted) {
      const began = performance.now();
      const how = await this.#runOnce();
      if (stopped.aborted && how === FINISHED) return;
      if (stopped.aborted) break;
      failures = performance.now() - began > STEADY_MS ? 1 : failures + 1;
      if (!this.#hasStarted && failures >= FIRST_START_ATTEMPTS) {
        this.#first.reject(new Error(`${this.role} cannot start: ${how}`));
        return;
      }
      const delay = Math.min(BACKOFF_FIRST_MS * 2 ** (failures - 1), BACKOFF_MAX_MS);
      this.#options.log.error({ again_in_ms: delay }, `${this.role} ended: ${how}`);
      await sleep(delay, undefined, { signal: stopped }).catch(() => undefined);
    }
    if (!this.#mustCleanUp) return;
    this.#options.log.info(
      `${this.role} was not running when the service stopped: starting it once more to clean up`,
    );
    const ended = this.#runOnce();
    this.#askToStop();
    await ended;
  }

  /** Runs the process once. @returns how it ended */
  #runOnce(): Promise<string> {
    const { role, program, env, logs } = this.#options;
    const child = spawn(
      'prlimit',
      [
        // A core dump would have secrets in it.
        '--core=0',
        '--',
        process.execPath,
        '--disable-warning=DeprecationWarning',
        '--enable-source-maps',
        `--max-semi-space-size=${YOUNG_MAX_MIB}`,
        programOf(program),
        role,
        '--supervised',
      ],
      {
        // A slow fsync occupies a thread; with the default of 4, a few of them block every file operation.
        env: { UV_THREADPOOL_SIZE: '16', ...env },
        stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
        // Its own session: Ctrl-C in a terminal is for the supervisor, which stops things in order.
        detached: true,
      },
    );
    this.#child = child;
    let reason: string | undefined;
    child.on('message', (message) => {
      if (!isProcessMessage(message)) return;
      if (message.type === 'failed') reason = message.message;
      if (message.type === 'linked') this.#isLinked = true;
      if (message.type !== 'started') return;
      if (this.#hasStarted) this.#options.log.info(`${role} is back`);
      this.#hasStarted = true;
      this.#first.resolve(message.facts);
    });
    for (const stream of [child.stdout, child.stderr]) {
      if (stream) createInterface({ input: stream }).on('line', (line) => logs.line(role, line));
    }
    return new Promise((resolve) => {
      child.once('error', (error) => resolve(error.message));
      child.once('exit', (code, signal) => {
        // The last lines and the reason may still arrive.
        const settle = (): void =>
          resolve(reason ?? (code === null ? `killed by ${signal ?? 'a signal'}` : `exit code ${code}`));
        const timer = setTimeout(settle, 1_000);
        child.once('close', () => {
          clearTimeout(timer);
          settle();
        });
      });
    });
  }
}

/**
 * Resolves when this process has run for so long. Time in which the machine stalled counts one tick: what ended meanwhile is
 * heard of before the rest is over.
 */
async function elapsed(ms: number, signal: AbortSignal): Promise<void> {
  for (let left = ms; left > 0; left -= TICK_MS) await sleep(Math.min(left, TICK_MS), undefined, { signal });
}
