import { setTimeout as sleep } from 'node:timers/promises';
import { HELPER_START_MS, RateLimit } from '@releap/contract/netd';
import type { Logger } from 'pino';
import type { TSchema } from 'typebox';
import {
  HelperConnection,
  type HelperEvent,
  HelperLostError,
  type HelperProtocol,
} from './helper-connection.ts';
import { killProcess } from '../../vmm/process-identity.ts';
import { type HelperProcess, netdVersion } from './helper-process.ts';

const REPLY_DEADLINE_MS = 20_000;
const CONNECT_POLL_MS = 20;
const RESTART_DELAY_MS = { first: 100, most: 10_000 };
/** One that served this long before it ended starts again without delay. */
const STEADY_MS = 30_000;
const PING_MS = 5_000;
const KILL_MS = 10_000;
const LOG_LINES = { perSecond: 50, burst: 500 };

interface Message {
  type: string;
}
/** The first message of a helper. */
interface Hello {
  type: 'hello';
  protocol: number;
  version: string;
}
interface LogLine {
  type: 'log';
  level: 'error' | 'warn' | 'info';
  message: string;
  facts: Record<string, string | number>;
}
/** What it says besides its first message and its log lines. */
export type HelperRequest<S extends TSchema> = Exclude<HelperEvent<S>, { type: 'hello' | 'log' }>;

/** Listens where this one would, and is of another version. */
class OtherVersionError<Sent extends Message, S extends TSchema> extends Error {
  readonly connection: HelperConnection<Sent, S>;

  constructor(connection: HelperConnection<Sent, S>, { version, protocol }: Hello) {
    super(`it is of version ${version}, protocol ${protocol}`);
    this.connection = connection;
  }
}

/** One of another version, which serves what it had open when this one took its place. */
export interface DrainingHelper<Sent extends Message, S extends TSchema> {
  connection: HelperConnection<Sent, S>;
  /** Resolves when it has ended for certain. */
  ended: Promise<void>;
}

export interface HelperOptions<Sent extends Message, S extends TSchema> {
  process: HelperProcess;
  /** Of those that are started. Default: that of this installation. */
  version?: string | undefined;
  /** Whether one of another version is told to `drain` before another takes its place; otherwise it is ended. */
  drains?: boolean;
  protocol: HelperProtocol<Sent, S>;
  /** One that takes longer to answer has hung. Default 20 000 ms. */
  replyMs?: number | undefined;
  /** Before one is started. */
  prepare?: () => Promise<void>;
  /** Configures one that was started or found. It may continue until the connection is lost. */
  serve: (connection: HelperConnection<Sent, S>) => Promise<void> | void;
  onHello?: (hello: Extract<HelperEvent<S>, { type: 'hello' }>) => void;
  onRequest: (request: HelperRequest<S>, from: HelperConnection<Sent, S>) => void;
  /** It has ended for certain, and nothing listens any more. */
  onDead?: () => void;
  log: Logger;
}

/**
 * Keeps a helper process running: finds that of an earlier runner or starts one, connects to it, and does so again when it
 * has ended, hangs, or is of another version.
 */
export class HelperSupervisor<Sent extends Message, S extends TSchema> {
  readonly #options: HelperOptions<Sent, S>;
  readonly #stopping = new AbortController();
  readonly #logged = new RateLimit(LOG_LINES);
  readonly #ping: NodeJS.Timeout;
  readonly #draining = new Set<DrainingHelper<Sent, S>>();
  #hasLooked = false;
  #running: Promise<void> | undefined;
  #connection: HelperConnection<Sent, S> | undefined;
  #isEnding = false;
  #ends = 0;

  constructor(options: HelperOptions<Sent, S>) {
    this.#options = options;
    const ping = { type: 'ping' } as Parameters<HelperConnection<Sent, S>['tell']>[0];
    this.#ping = setInterval(() => this.#connection?.tell(ping), PING_MS).unref();
  }

  /** Undefined while it does not run. */
  get connection(): HelperConnection<Sent, S> | undefined {
    return this.#connection;
  }

  /** They have to be told, too, what is to end. */
  get draining(): DrainingHelper<Sent, S>[] {
    return [...this.#draining];
  }

  /** The last one has lost its connection and is being ended: until `onDead` it may still serve. */
  get isEnding(): boolean {
    return this.#isEnding;
  }

  /** How often one has ended by itself, or hung and was ended. */
  get ends(): number {
    return this.#ends;
  }

  get isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** Repeating it does nothing. */
  start(): void {
    this.#running ??= this.#keepRunning();
  }

  /** The process, for tests and people; undefined while there is none. */
  async pid(): Promise<number | undefined> {
    return (await this.#options.process.running())?.pid;
  }

  /** What it wrote before it ended, for people. */
  async lastOutput(): Promise<string> {
    return await this.#options.process.lastOutput();
  }

  /** The runner ends, the helper continues. */
  async detach(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#ping);
    this.#connection?.end('the runner is ending');
    for (const { connection } of this.#draining) connection.end('the runner is ending');
    await this.#running;
  }

  /** Ends the helper. */
  async stop(): Promise<void> {
    await this.detach();
    await this.#options.process.remove();
  }

  async #keepRunning(): Promise<void> {
    const { log, process, protocol, onDead } = this.#options;
    const { signal } = this.#stopping;
    let delay = RESTART_DELAY_MS.first;
    while (!signal.aborted) {
      const began = performance.now();
      const why = await this.#serve().catch((error: unknown) =>
        error instanceof Error ? error.message : String(error),
      );
      if (signal.aborted) return;
      this.#ends += 1;
      // One whose connection is lost may still listen, and it may have hung: only a dead one leads nowhere.
      await process.kill().catch((err: unknown) => log.error({ err }, `${protocol.name} could not be ended`));
      this.#isEnding = false;
      onDead?.();
      if (performance.now() - began > STEADY_MS) delay = RESTART_DELAY_MS.first;
      const output = await process.lastOutput();
      log.error({ why, again_in_ms: delay, ...(output === '' ? {} : { output }) }, `${protocol.name} ended`);
      await sleep(delay, undefined, { signal }).catch(() => undefined);
      delay = Math.min(delay * 2, RESTART_DELAY_MS.most);
    }
  }

  /** From the start of one, or from finding it, to its end. @returns why it ended */
  async #serve(): Promise<string> {
    const connection = await this.#connect();
    this.#connection = connection;
    // A runner that began to end while this connected has not seen the connection.
    if (this.isStopping) connection.end('the runner is ending');
    try {
      await this.#options.serve(connection);
    } catch (error) {
      connection.end(error instanceof Error ? error.message : String(error));
    }
    const why = await connection.lost;
    this.#connection = undefined;
    this.#isEnding = true;
    return why;
  }

  async #connect(): Promise<HelperConnection<Sent, S>> {
    const { process, prepare, version = netdVersion() } = this.#options;
    if (!this.#hasLooked) await process.killOthers();
    this.#hasLooked = true;
    if ((await process.running()) !== undefined) {
      const found = await this.#handshake(version).catch(async (error: unknown) => {
        if (error instanceof OtherVersionError) await this.#drain(error as OtherVersionError<Sent, S>);
      });
      if (found !== undefined) return found;
    }
    await prepare?.();
    await process.start();
    const end = performance.now() + HELPER_START_MS;
    for (;;) {
      await sleep(CONNECT_POLL_MS);
      try {
        return await this.#handshake(version);
      } catch (error) {
        if (error instanceof OtherVersionError)
          (error as OtherVersionError<Sent, S>).connection.end('it is not the one that was started');
        this.#stopping.signal.throwIfAborted();
        if (performance.now() > end || (await process.running()) === undefined) throw error;
      }
    }
  }

  /** One that does not know how is ended when another is started. */
  async #drain({ connection, message }: OtherVersionError<Sent, S>): Promise<void> {
    const { process, protocol, drains = false, log } = this.#options;
    try {
      if (!drains) throw new Error(message);
      await connection.request({ type: 'drain' } as Parameters<typeof connection.request>[0]);
    } catch {
      return connection.end('it is to be replaced');
    }
    const identity = await process.release();
    const ended = connection.lost.then(async () => {
      this.#draining.delete(draining);
      if (identity === undefined || this.isStopping) return;
      await killProcess(identity, KILL_MS).catch((err: unknown) =>
        log.error({ err }, `a former ${protocol.name} could not be ended`),
      );
    });
    const draining = { connection, ended };
    this.#draining.add(draining);
    log.info({ why: message, pid: identity?.pid }, `another ${protocol.name} takes over; connections stay`);
  }

  /** @throws when none listens, or OtherVersionError */
  async #handshake(version: string): Promise<HelperConnection<Sent, S>> {
    const { process, protocol, replyMs = REPLY_DEADLINE_MS, onHello, onRequest, log } = this.#options;
    const greeted = Promise.withResolvers<void>();
    let isGreeted = false;
    const onEvent = (event: HelperEvent<S>, from: HelperConnection<Sent, S>): void => {
      const message = event as unknown as Hello | LogLine | { type: 'other' };
      if (message.type === 'hello') {
        if (message.protocol !== protocol.version || message.version !== version)
          return greeted.reject(new OtherVersionError(from, message));
        onHello?.(event as Extract<HelperEvent<S>, { type: 'hello' }>);
        isGreeted = true;
        greeted.resolve();
      } else if (message.type === 'log') {
        if (this.#logged.take()) log[message.level](message.facts, message.message);
        // One that drains has nothing to ask.
      } else if (isGreeted) onRequest(event as HelperRequest<S>, from);
    };
    const connection = await HelperConnection.open(process.socketPath, protocol, replyMs, onEvent);
    const timer = setTimeout(() => connection.end('no greeting'), HELPER_START_MS);
    void connection.lost.then((why) => greeted.reject(new HelperLostError(why)));
    try {
      await greeted.promise;
      return connection;
    } catch (error) {
      if (!(error instanceof OtherVersionError)) connection.end('it is to be replaced');
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }
}
