import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { RUNNER_LINK_PATH } from '@releap/contract';
import {
  FramingError,
  HEARTBEAT_MS,
  LINK_CLOSE,
  LINK_MESSAGE_MAX_BYTES,
  readControlMessage,
  RUNNER_PROTOCOL,
  type ControlMessage,
  type CpuReading,
  type HeldMemory,
  type HelloMessage,
  type Reading,
  type Report,
  type RunnerMessage,
  type UsageHistoryMessage,
  type WelcomeMessage,
} from '@releap/contract/runner';
import type { Logger } from 'pino';
import { WebSocket } from 'ws';
import type { Deployment } from './deployment.ts';
import { Intake } from './intake.ts';
import type { AnyKindHandler } from './kind-handler.ts';
import { ReportOutbox, type OutgoingReports } from './report-outbox.ts';

const CONNECT_DEADLINE_MS = 10_000;
/** Control answers every ping; this long without one and the link is dialled anew. */
const SILENCE_MAX_MS = 30_000;
const BACKOFF_MIN_MS = 100;
const BACKOFF_MAX_MS = 5_000;
/** After a refusal that only an operator can mend. */
const REFUSED_RETRY_MS = 30_000;
const REFUSALS: ReadonlySet<number> = new Set([
  LINK_CLOSE.refused,
  LINK_CLOSE.otherDeployment,
  LINK_CLOSE.version,
]);
/** A close frame has room for 123 bytes. */
const REASON_CHARS = 120;

export interface ControlLinkOptions {
  /** `http(s)://host:port` of the control plane's internal listener. */
  controlUrl: string;
  /** Opens the connection for a link. Default: without TLS, or as authorities of this machine say. */
  dial?: () => Promise<Socket>;
  /** What the runner shows at each connection. Rejects when the control plane does not accept the runner. */
  credential: () => Promise<string>;
  deployment: Deployment;
  /** How long to wait after a refusal, in milliseconds. */
  refusedRetryMs?: number;
  log: Logger;
}

/** What a link connects control with. */
export interface LinkedRunner {
  /** What the runner says of itself, at every (re)connect. */
  hello: () => Pick<HelloMessage, 'runner_id' | 'region' | 'data_url' | 'facts' | 'capabilities'>;
  /** Whether a sandbox could be created here now; sent with every heartbeat. */
  isReady: () => boolean;
  /** What the runner holds for sandboxes outside their limits; sent with every heartbeat. */
  heldMemory: () => HeldMemory;
  /** Free space for new disks; undefined while it is not known. */
  freeDiskMib: () => number | undefined;
  /** The kinds that this machine reconciles. */
  handlers: readonly AnyKindHandler[];
  /** A link was made: a whole new sync follows. */
  onLinked: () => void;
  /** A sync is complete, and names everything of all these kinds. */
  onSynced: () => void;
  /** Control has these capabilities, on the link that was just made. */
  onCapabilities?: (capabilities: readonly string[]) => void;
  /** A gateway or a control server at this address needs connections that the runner opens. */
  onDial?: ((address: string) => void) | undefined;
  /** Control has stored the `usage_history` with this number. */
  onUsageStored?: (seq: number) => void;
}

/**
 * The runner's end of the link (docs/runner-protocol.md). It keeps one connection up, sends again what was not
 * acknowledged, and never gives up: a runner without control keeps its sandboxes. Reports may be made before it is started.
 */
export class ControlLink {
  readonly #options: ControlLinkOptions;
  readonly #outbox = new ReportOutbox();
  readonly #closing = new AbortController();
  readonly #logged = new Set<string>();
  /** The newest connection. */
  #socket: WebSocket | undefined;
  /** The connection, once control has welcomed the runner on it. */
  #welcomed: WebSocket | undefined;
  #loop: Promise<void> | undefined;
  #started: { runner: LinkedRunner; intake: Intake } | undefined;

  constructor(options: ControlLinkOptions) {
    this.#options = options;
  }

  /** Connects, and stays connected until it is closed. To be called once. */
  start(runner: LinkedRunner): void {
    const intake = new Intake({
      handlers: runner.handlers,
      onSynced: runner.onSynced,
      onUnsupported: ({ error, ...item }) => {
        this.#logOnce(
          `unsupported ${item.kind}`,
          { item, error },
          'control wants what is not supported here',
        );
        this.#send(this.#outbox.put({ ...item, status: 'unsupported', detail: { error } }));
      },
    });
    this.#started = { runner, intake };
    this.#loop = this.#keepConnected();
  }

  get #runner(): LinkedRunner {
    return this.#opened.runner;
  }

  get #intake(): Intake {
    return this.#opened.intake;
  }

  get #opened(): { runner: LinkedRunner; intake: Intake } {
    if (this.#started === undefined) throw new Error('the link was not started');
    return this.#started;
  }

  report(report: Report): void {
    this.#send(this.#outbox.put(report));
  }

  /** Sent once and stored nowhere: the next one makes up for what is lost. */
  usage(readings: CpuReading[]): void {
    this.#send({ type: 'usage', readings });
  }

  /** What cannot be sent now is sent again by the caller, at the next link. */
  usageHistory(message: UsageHistoryMessage): void {
    this.#send(message);
  }

  /** Says at once whether the runner is ready, instead of at the next heartbeat. */
  heartbeat(): void {
    const { isReady, heldMemory, freeDiskMib } = this.#runner;
    const free = freeDiskMib();
    this.#send({
      type: 'heartbeat',
      ready: isReady(),
      held_memory: heldMemory(),
      ...(free === undefined ? {} : { free_disk_mib: free }),
    });
  }

  /** Connects again, because the answer of `hello` has changed. */
  renew(): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.close(1000);
  }

  /** Resolves once control has stored everything reported so far, or when the signal aborts. */
  async flushed(signal: AbortSignal): Promise<void> {
    while (!this.#outbox.isEmpty && !signal.aborted) {
      await sleep(20, undefined, { signal }).catch(() => undefined);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#loop;
  }

  async #keepConnected(): Promise<void> {
    const { log, refusedRetryMs = REFUSED_RETRY_MS } = this.#options;
    let backoff = BACKOFF_MIN_MS;
    while (!this.#closing.signal.aborted) {
      const startedAt = performance.now();
      const { why, isRefusal } = await this.#connectOnce();
      if (this.#closing.signal.aborted) return;
      // A link that held is not a link that flaps: start over with the short wait.
      if (performance.now() - startedAt > BACKOFF_MAX_MS) backoff = BACKOFF_MIN_MS;
      const retryInMs = isRefusal ? refusedRetryMs : backoff;
      if (isRefusal) log.error({ why, retryInMs }, 'refused by the control plane; sandboxes keep running');
      else log.warn({ why, retryInMs }, 'no link to the control plane; sandboxes keep running');
      await sleep(retryInMs, undefined, { signal: this.#closing.signal }).catch(() => undefined);
      backoff = Math.min(backoff * 2, BACKOFF_MAX_MS);
    }
  }

  /** One connection from dial to end. Resolves with the reason why it ended. */
  async #connectOnce(): Promise<{ why: string; isRefusal: boolean }> {
    const { controlUrl, log } = this.#options;
    let token: string;
    let connection: Socket | undefined;
    try {
      token = await this.#options.credential();
      connection = await this.#options.dial?.();
    } catch (error) {
      return { why: explain(error), isRefusal: false };
    }
    if (this.#closing.signal.aborted) {
      connection?.destroy();
      return { why: 'the runner is closing', isRefusal: false };
    }
    const url = new URL(RUNNER_LINK_PATH, controlUrl);
    // A connection that was opened already has its TLS.
    url.protocol = url.protocol === 'https:' && connection === undefined ? 'wss:' : 'ws:';
    const socket = new WebSocket(url, {
      headers: { authorization: `Bearer ${token}` },
      handshakeTimeout: CONNECT_DEADLINE_MS,
      maxPayload: LINK_MESSAGE_MAX_BYTES,
      perMessageDeflate: false,
      ...(connection && { createConnection: () => connection }),
    });
    this.#socket = socket;
    // Also while it is still dialling: a link that opens after the close would never end.
    const hangUp = (): void => socket.close(1000);
    this.#closing.signal.addEventListener('abort', hangUp, { once: true });
    return new Promise((resolve) => {
      let why = 'the connection was closed';
      let isRefusal = false;
      let heardAt = performance.now();
      /** @param code one of `LINK_CLOSE`: control is told why */
      const refuse = (code: number, reason: string): void => {
        why = reason;
        isRefusal = true;
        socket.close(code, reason.slice(0, REASON_CHARS));
      };
      const heartbeat = setInterval(() => {
        if (performance.now() - heardAt > SILENCE_MAX_MS) {
          why = `no answer for ${SILENCE_MAX_MS} ms`;
          socket.terminate();
          return;
        }
        if (socket.readyState !== WebSocket.OPEN) return;
        socket.ping();
        this.heartbeat();
      }, HEARTBEAT_MS);
      socket.on('open', () => {
        log.info({ controlUrl }, 'connected to the control plane');
        socket.send(JSON.stringify(this.#hello()));
      });
      socket.on('pong', () => {
        heardAt = performance.now();
      });
      socket.on('message', (data, binary) => {
        heardAt = performance.now();
        if (socket.readyState !== WebSocket.OPEN) return;
        if (binary) return refuse(LINK_CLOSE.framing, 'control sent a binary message');
        this.#receive((data as Buffer).toString('utf8'), socket, refuse);
      });
      socket.on('error', (error) => {
        why = error.message;
      });
      socket.on('close', (code, reason) => {
        clearInterval(heartbeat);
        this.#closing.signal.removeEventListener('abort', hangUp);
        if (this.#welcomed === socket) this.#welcomed = undefined;
        if (!isRefusal && code >= 4000) {
          why = reason.toString() || why;
          isRefusal = REFUSALS.has(code);
        }
        resolve({ why, isRefusal });
      });
    });
  }

  #hello(): HelloMessage {
    const { deployment } = this.#options;
    return {
      type: 'hello',
      protocol: RUNNER_PROTOCOL,
      ...this.#runner.hello(),
      ...(deployment.id === undefined ? {} : { deployment_id: deployment.id }),
      kinds: this.#intake.kinds,
    };
  }

  #receive(data: string, socket: WebSocket, refuse: (code: number, reason: string) => void): void {
    let reading: Reading<ControlMessage>;
    try {
      reading = readControlMessage(data, this.#intake.kinds);
    } catch (error) {
      if (!(error instanceof FramingError)) throw error;
      return refuse(LINK_CLOSE.framing, `control sent ${error.message}`);
    }
    if (this.#welcomed !== socket) {
      if (reading.outcome !== 'message' || reading.message.type !== 'welcome')
        return refuse(LINK_CLOSE.framing, 'the first message must be welcome');
      this.#handleWelcome(reading.message, socket, refuse);
      return;
    }
    if (reading.outcome === 'unknown-type') {
      this.#logOnce(reading.type, { type: reading.type }, 'messages of an unknown type are ignored');
      return;
    }
    if (reading.outcome === 'unreadable') {
      const { type, error } = reading;
      if (type === 'sync') this.#intake.gap();
      this.#logOnce(type, { type, error }, 'a message of control cannot be read and is ignored');
      return;
    }
    const { message } = reading;
    if (message.type === 'ack') {
      for (const { error, ...item } of message.unsupported ?? [])
        this.#logOnce(`ack ${item.kind}`, { item, error }, 'control cannot read a report');
      this.#intake.stored(this.#outbox.acknowledge(message.seq));
      return;
    }
    if (message.type === 'dial') return this.#runner.onDial?.(message.address);
    if (message.type === 'usage_stored') return this.#runner.onUsageStored?.(message.seq);
    this.#intake.take(reading);
  }

  #handleWelcome(
    welcome: WelcomeMessage,
    socket: WebSocket,
    refuse: (code: number, reason: string) => void,
  ): void {
    const { deployment, log } = this.#options;
    if (welcome.protocol > RUNNER_PROTOCOL)
      return refuse(LINK_CLOSE.version, `control speaks protocol ${welcome.protocol}: upgrade the runner`);
    if (!deployment.join(welcome.deployment_id)) {
      const ids = `${deployment.id}, this is ${welcome.deployment_id}`;
      return refuse(LINK_CLOSE.otherDeployment, `the runner belongs to deployment ${ids}`);
    }
    this.#intake.linked(welcome.kinds);
    this.#runner.onLinked();
    this.#welcomed = socket;
    for (const message of this.#outbox.unacknowledged()) this.#send(message);
    this.heartbeat();
    this.#runner.onCapabilities?.(welcome.capabilities);
    log.info({ deployment: welcome.deployment_id, kinds: welcome.kinds }, 'linked to the control plane');
  }

  #logOnce(key: string, about: object, text: string): void {
    if (this.#logged.has(key)) return;
    this.#logged.add(key);
    this.#options.log.warn(about, text);
  }

  /** What cannot be sent before the welcome is in the outbox, or made up for by the next of its kind. */
  #send(message: RunnerMessage | OutgoingReports): void {
    if (this.#welcomed?.readyState === WebSocket.OPEN) this.#welcomed.send(JSON.stringify(message));
  }
}

/** `fetch` puts the reason into the cause. */
function explain(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${cause.message}` : message;
}
