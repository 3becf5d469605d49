/** Typed requests to a guest's agent. Responses are untrusted: each is validated. */
import { once } from 'node:events';
import { type ConnectOptions, GuestConnection } from './connection.ts';
import type { EntrypointListener } from './entrypoint-output.ts';
import { cancelOnAbort, GuestCalls } from './guest-calls.ts';
import { GuestError } from './guest-error.ts';
import { GuestFiles } from './guest-files.ts';
import {
  type EntrypointState,
  type GuestHello,
  readBag,
  readClock,
  readCounts,
  readEntrypoint,
  readFlag,
  readInt,
  readText,
  readTexts,
} from './replies.ts';
import { configParams, defaultsParams, identityParams, programParams } from './requests.ts';
import type {
  CallOptions,
  ExecRequest,
  ExecResult,
  GuestConfig,
  GuestDial,
  GuestFreeze,
  GuestIdentity,
  GuestProcess,
  GuestProgram,
  GuestStatus,
  ProcessDefaults,
  StoreMount,
} from './requests.ts';

/** The agent gives up earlier. */
const DIAL_DEADLINE_MS = 10_000;
/** Its first connection starts a program. */
const TOOLBOX_DEADLINE_MS = 30_000;
/** A guest's clock is right when it is not further behind than this, an answer's way to us included … */
const CLOCK_BEHIND_MS = 30;
/** … nor further ahead than what the agent leaves as it is. */
const CLOCK_AHEAD_MS = 100;
const CLOCK_TRIES = 5;

/** Unix time in nanoseconds. */
export function nowNs(): bigint {
  return BigInt(Date.now()) * 1_000_000n;
}

function millisecondsSince(ns: bigint): number {
  return Number(nowNs() - ns) / 1_000_000;
}

/** After this long without a response, the HELLO is assumed to be part of a truncated frame of an earlier host. */
const RESYNC_AFTER_MS = 750;
const GREETINGS_MAX = 3;

export class GuestClient implements AsyncDisposable {
  readonly files: GuestFiles;
  readonly #connection: GuestConnection;
  readonly #calls: GuestCalls;

  private constructor(connection: GuestConnection) {
    this.#connection = connection;
    this.#calls = new GuestCalls(connection);
    this.files = new GuestFiles(connection, this.#calls);
  }

  /**
   * Connects to a running agent and waits for its HELLO. A guest that is only slow takes what clears its input for a broken
   * message, and may end the session: it is greeted again then, with more patience.
   */
  static async connect(socketPath: string, options: ConnectOptions): Promise<GuestClient> {
    const deadlineMs = options.deadlineMs ?? 10_000;
    const deadline = performance.now() + deadlineMs;
    for (let attempt = 0; ; attempt += 1) {
      const connection = await GuestConnection.open(socketPath, options);
      try {
        await connection.greet(Math.max(1, deadline - performance.now()), {
          resyncAfterMs: RESYNC_AFTER_MS * 4 ** attempt,
          signal: options.signal,
        });
        return new GuestClient(connection);
      } catch (error) {
        const isOver = !(error instanceof GuestError) || error.code !== 'protocol';
        if (isOver || attempt === GREETINGS_MAX - 1 || performance.now() >= deadline) throw error;
      }
    }
  }

  /**
   * Connects and sends HELLO but does not wait for the agent, which may not even run yet: requests are answered in
   * order once it does. `hello(deadlineMs)` then waits.
   */
  static async open(socketPath: string, options: ConnectOptions): Promise<GuestClient> {
    return new GuestClient(await GuestConnection.open(socketPath, options));
  }

  hello(deadlineMs = 10_000): Promise<GuestHello> {
    return this.#connection.greet(deadlineMs);
  }

  get closed(): boolean {
    return this.#connection.closed;
  }

  /** The entrypoint's state as last known. */
  get entrypoint(): EntrypointState | undefined {
    return this.#connection.entrypointState;
  }

  /** Tells the entrypoint's state as last known, then every change. @returns how to stop listening */
  onEntrypoint(listener: (state: EntrypointState) => void): () => void {
    const known = this.#connection.entrypointState;
    if (known !== undefined) queueMicrotask(() => listener(known));
    this.#connection.on('entrypoint', listener);
    return () => this.#connection.off('entrypoint', listener);
  }

  /** Once, when the connection is over; soon, when it is already. @returns how to stop listening */
  onClose(listener: (error: GuestError) => void): () => void {
    const ended = this.#connection.error;
    if (ended !== undefined) queueMicrotask(() => listener(ended));
    else this.#connection.once('close', listener);
    return () => this.#connection.off('close', listener);
  }

  /** Sets the only listener: it gets the output that the guest has buffered, then what follows. */
  onEntrypointOutput(listener: EntrypointListener | undefined): void {
    this.#connection.onEntrypointOutput(listener);
  }

  ping(deadlineMs = 5_000): Promise<void> {
    return this.#connection.ping(deadlineMs);
  }

  close(): void {
    this.#connection.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /** To be called once after a boot. After an error the guest is unusable and its VM must be destroyed. */
  async configure(
    config: GuestConfig,
    options?: CallOptions,
  ): Promise<{ entrypoint: EntrypointState; reservedBytes: number; timingsUs: unknown }> {
    const input = config.storeProgram?.path;
    const answer = await this.#calls.call('configure', configParams(config), { ...options, input });
    return {
      entrypoint: readEntrypoint(readBag(answer, 'entrypoint')),
      reservedBytes: readInt(answer, 'reserved_bytes', 0),
      timingsUs: answer['timings_us'],
    };
  }

  /**
   * Gives a resumed or forked sandbox a new identity, and then thaws it; after an error it stays frozen until it is thawed.
   * `env` replaces the former environment. May be sent before the guest runs.
   * @returns the files below /etc that could not be written, with the reasons, and the guest's clock: if the request waited
   *   for the guest, the time in it was old, see `setClock`
   */
  async reconfigure(
    config: GuestIdentity & ProcessDefaults,
    options?: CallOptions,
  ): Promise<{ unwritten: string[]; clockNs: bigint; timingsUs: Record<string, number> }> {
    const params = { ...identityParams(config), ...defaultsParams(config) };
    const answer = await this.#connection.writer.release(() =>
      this.#calls.call('reconfigure', params, options),
    );
    return {
      unwritten: readTexts(answer, 'unwritten'),
      clockNs: readClock(answer, 'clock_ns'),
      timingsUs: readCounts(answer, 'timings_us'),
    };
  }

  exec(request: ExecRequest, options: { signal?: AbortSignal } = {}): GuestProcess {
    const { timeoutMs, killGraceMs, ...rest } = request;
    const stream = this.#connection.request('exec', {
      ...rest,
      timeout_ms: timeoutMs,
      kill_grace_ms: killGraceMs,
    });
    const release = cancelOnAbort(stream, 'exec', options.signal);
    if (request.stdin !== true && request.pty === undefined) stream.stdin.end();
    const exit = stream.result.then((answer): ExecResult => {
      return {
        exitCode: readInt(answer, 'exit_code'),
        timedOut: readFlag(answer, 'timed_out'),
        ...(answer['signal'] === undefined ? {} : { signal: readText(answer, 'signal', 32) }),
        ...(answer['error'] === undefined ? {} : { error: readText(answer, 'error') }),
      };
    });
    exit.catch(() => undefined).finally(release);
    return {
      stdin: stream.stdin,
      stdout: stream.stdout,
      stderr: stream.stderr,
      exit,
      signal: async (name) => {
        await this.#calls.call('signal', { stream: stream.id, signal: name });
      },
      resize: async (size) => {
        await this.#calls.call('resize', { stream: stream.id, ...size });
      },
      cancel: () => stream.cancel(new GuestError('aborted', 'the command was cancelled')),
    };
  }

  /**
   * Connects to a port of the guest's loopback interface.
   * @throws GuestError `not_found` when nothing listens
   */
  dial(port: number, deadlineMs = DIAL_DEADLINE_MS): Promise<GuestDial> {
    return this.#connect('dial', { port }, `port ${port}`, deadlineMs);
  }

  /**
   * Connects to the guest's toolbox daemon, which speaks HTTP; the agent starts it if it does not run.
   * @throws GuestError `not_found` when it cannot be started
   */
  toolbox(deadlineMs = TOOLBOX_DEADLINE_MS): Promise<GuestDial> {
    return this.#connect('toolbox', {}, 'the toolbox', deadlineMs);
  }

  async #connect(
    method: string,
    params: Record<string, unknown>,
    server: string,
    deadlineMs: number,
  ): Promise<GuestDial> {
    const stream = this.#connection.request(method, params);
    const timer = setTimeout(
      () => stream.cancel(new GuestError('timeout', `${server} did not accept within ${deadlineMs} ms`)),
      deadlineMs,
    );
    try {
      const accepted = once(stream.stderr.resume(), 'end');
      accepted.catch(() => undefined);
      // An error is the answer to the request, and tells more than that of the channel.
      await Promise.race([accepted, stream.result.then(() => accepted)]);
    } catch (error) {
      await stream.result;
      throw error;
    } finally {
      clearTimeout(timer);
    }
    return {
      readable: stream.stdout,
      writable: stream.stdin,
      reset: () => stream.cancel(new GuestError('aborted', 'the connection was reset')),
    };
  }

  /**
   * Agents of earlier versions have a program of their own and ignore this one.
   * @returns whether this very mount was there already, which agents of earlier versions do not tell: true then
   * @throws GuestError `exists` while something is being mounted there, `state` with the reason when it cannot be
   */
  async mountStore(mount: StoreMount, program: GuestProgram, options?: CallOptions): Promise<boolean> {
    const params = { ...mount, store_program: programParams(program) };
    const answer = await this.#calls.call('mount-store', params, { ...options, input: program.path });
    return answer['existed'] !== false;
  }

  /** A path at which no store is mounted is no error. @throws GuestError `state` while files there are open */
  async unmountStore(path: string, options?: CallOptions): Promise<void> {
    await this.#calls.call('unmount-store', { path }, options);
  }

  async sync(options?: CallOptions): Promise<void> {
    await this.#calls.call('sync', {}, options);
  }

  /**
   * Freezes and thaws a thread of the agent, which makes the next freeze several times faster. Its name in the protocol stays:
   * the agents of saved sandboxes know no other.
   */
  async warmUpFreeze(options?: CallOptions): Promise<void> {
    await this.#calls.call('rehearse', {}, options);
  }

  /**
   * Freezes the sandbox for a capture: its processes, then its scratch disk, which is flushed. `processesOnly` is for captures
   * of memory and disk, `diskOnly` for those of the disk only. `flushOnly` freezes the processes and flushes the disk without
   * freezing it, so that the captured file system has a journal to replay. A `sync` before makes this faster. After an
   * error the sandbox continues. It thaws by itself `thawAfterMs` after the last sign of a host.
   * @param options.settleMs limit of the freezing itself
   * @param options.silent other requests on this connection are held back until `thaw` or `reconfigure` is called: a machine
   *   that is captured with a partial message in its input would read the next host's first bytes as the rest of it
   */
  async freeze(
    options: CallOptions & {
      thawAfterMs?: number;
      settleMs?: number;
      processesOnly?: boolean;
      diskOnly?: boolean;
      flushOnly?: boolean;
      silent?: boolean;
    } = {},
  ): Promise<GuestFreeze> {
    const { thawAfterMs, settleMs, processesOnly, diskOnly, flushOnly, silent } = options;
    const params = {
      deadline_ms: thawAfterMs,
      settle_ms: settleMs,
      processes_only: processesOnly,
      disk_only: diskOnly,
      flush_only: flushOnly,
    };
    const asked = this.#calls.call('freeze', params, options);
    if (silent === true) this.#connection.writer.hold();
    try {
      const answer = await asked;
      return { inKernel: readFlag(answer, 'in_kernel'), stepsUs: readCounts(answer, 'steps_us') };
    } catch (error) {
      this.#connection.writer.release(() => undefined);
      throw error;
    }
  }

  /**
   * May be sent while the guest is paused: it is the first request that the guest handles when it is resumed.
   * @param options.clockNs Unix time in nanoseconds. A guest's clock is stopped while the guest is paused.
   */
  async thaw(
    options: CallOptions & { clockNs?: bigint } = {},
  ): Promise<{ clockNs: bigint; stepsUs: Record<string, number> }> {
    const params = { clock_ns: options.clockNs?.toString() };
    const answer = await this.#connection.writer.release(() => this.#calls.call('thaw', params, options));
    return { clockNs: readClock(answer, 'clock_ns'), stepsUs: readCounts(answer, 'steps_us') };
  }

  /**
   * Sets the clock of a guest that is not frozen to the host's, unless it is known to be right. Repeats it if the request was
   * delayed.
   * @param known the guest's clock, as in its last response
   * @returns upper bound of the milliseconds that it is behind, including the delay of the last response
   */
  async setClock(known?: bigint, options?: CallOptions): Promise<number> {
    let behind = known === undefined ? Number.POSITIVE_INFINITY : millisecondsSince(known);
    for (let tries = 0; tries < CLOCK_TRIES; tries += 1) {
      if (behind <= CLOCK_BEHIND_MS && behind >= -CLOCK_AHEAD_MS) break;
      const { clockNs } = await this.thaw({ ...options, clockNs: nowNs() });
      behind = millisecondsSince(clockNs);
    }
    return behind;
  }

  /**
   * Milliseconds by which the guest's clock is behind the host's for certain, negative where it is ahead: the time that the answer takes is
   * no difference.
   */
  async clockBehind(options?: CallOptions): Promise<number> {
    const asked = nowNs();
    const clockNs = readClock(await this.#calls.call('status', {}, options), 'clock_ns');
    const behind = Math.max(0, Number(asked - clockNs) / 1_000_000);
    return behind > 0 ? behind : Math.min(0, millisecondsSince(clockNs));
  }

  /**
   * Corrects the guest's clock gradually.
   * @param behindMs less than a second, negative where it is ahead
   */
  async slewClock(behindMs: number, options?: CallOptions): Promise<void> {
    await this.#calls.call('slew-clock', { behind_us: Math.round(behindMs * 1000) }, options);
  }

  /** Ends all processes within `graceMs`, makes the disk clean and powers off. */
  async shutdown(options: CallOptions & { graceMs?: number } = {}): Promise<{ graceful: boolean }> {
    const graceMs = options.graceMs ?? 10_000;
    const deadlineMs = options.deadlineMs ?? graceMs + 10_000;
    const answer = await this.#calls.call('shutdown', { deadline_ms: graceMs }, { ...options, deadlineMs });
    return { graceful: readFlag(answer, 'graceful') };
  }

  async status(options?: CallOptions): Promise<GuestStatus> {
    const answer = await this.#calls.call('status', {}, options);
    const memory = readBag(answer, 'memory');
    const disk = readBag(answer, 'disk');
    return {
      uptimeSeconds: readInt(answer, 'uptime_s'),
      configured: readFlag(answer, 'configured'),
      frozen: readFlag(answer, 'frozen'),
      entrypoint: readEntrypoint(readBag(answer, 'entrypoint')),
      execs: readInt(answer, 'execs'),
      processes: readInt(answer, 'processes', 0),
      memory: { total: readInt(memory, 'total'), available: readInt(memory, 'available') },
      disk: {
        total: readInt(disk, 'total'),
        used: readInt(disk, 'used'),
        available: readInt(disk, 'available'),
      },
    };
  }
}
