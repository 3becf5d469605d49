import { setTimeout as sleep } from 'node:timers/promises';
import {
  type BuildResult,
  type ControlMessage,
  type CpuReading,
  HEARTBEAT_MS,
  LINK_MESSAGE_MAX_BYTES,
  type Observation,
  type RunnerMessage,
  type SnapshotObservation,
} from '@releap/contract';
import type { Logger } from 'pino';
import { WebSocket } from 'ws';
import { Outbox } from './outbox.ts';

const CONNECT_DEADLINE_MS = 10_000;
/** Control answers every ping; this long without one and the link is dialled anew. */
const SILENCE_MAX_MS = 30_000;
const BACKOFF_MIN_MS = 100;
const BACKOFF_MAX_MS = 5_000;

export interface ControlLinkOptions {
  /** `http(s)://host:port` of the control plane. */
  controlUrl: string;
  token: string;
  /** Called at every (re)connect, before anything is received on it. */
  hello: () => Extract<RunnerMessage, { type: 'hello' }>;
  /** Whether a sandbox could be created here now; told with every heartbeat. */
  isReady: () => boolean;
  onMessage: (message: ControlMessage) => void;
  /** Observations that control has stored for good. */
  onStored: (observations: Observation[]) => void;
  log: Logger;
}

/**
 * The runner's end of the link (see `runner-link.ts` in the contract for the rules). It keeps one connection
 * up, says again what was not acknowledged, and never gives up: a runner without control keeps its sandboxes.
 */
export class ControlLink {
  readonly #options: ControlLinkOptions;
  readonly #outbox = new Outbox();
  readonly #closing = new AbortController();
  #socket: WebSocket | undefined;
  #loop: Promise<void> | undefined;

  constructor(options: ControlLinkOptions) {
    this.#options = options;
  }

  start(): void {
    this.#loop ??= this.#keepConnected();
  }

  observe(observation: Observation): void {
    this.#send(this.#outbox.observe(observation));
  }

  observeSnapshot(observation: SnapshotObservation): void {
    this.#send(this.#outbox.observeSnapshot(observation));
  }

  buildResult(result: BuildResult): void {
    this.#send(this.#outbox.buildResult(result));
  }

  /** Told once and kept nowhere: the next one makes up for what is lost. */
  usage(readings: CpuReading[]): void {
    this.#send({ type: 'usage', readings });
  }

  /** Says at once whether the runner is ready, instead of at the next heartbeat. */
  heartbeat(): void {
    this.#send({ type: 'heartbeat', ready: this.#options.isReady() });
  }

  /** Resolves once control has stored everything said so far, or when the signal aborts. */
  async flushed(signal: AbortSignal): Promise<void> {
    while (this.#outbox.unacknowledged().length > 0 && !signal.aborted) {
      await sleep(20, undefined, { signal }).catch(() => undefined);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#loop;
  }

  async #keepConnected(): Promise<void> {
    const { log } = this.#options;
    let backoff = BACKOFF_MIN_MS;
    while (!this.#closing.signal.aborted) {
      const startedAt = performance.now();
      const why = await this.#connectOnce();
      if (this.#closing.signal.aborted) return;
      // A link that held is not a link that flaps: start over with the short wait.
      if (performance.now() - startedAt > BACKOFF_MAX_MS) backoff = BACKOFF_MIN_MS;
      log.warn({ why, retryInMs: backoff }, 'no link to the control plane; sandboxes keep running');
      await sleep(backoff, undefined, { signal: this.#closing.signal }).catch(() => undefined);
      backoff = Math.min(backoff * 2, BACKOFF_MAX_MS);
    }
  }

  /** One connection from dial to end. Resolves with the reason why it ended. */
  #connectOnce(): Promise<string> {
    const { controlUrl, token, hello, log } = this.#options;
    const url = new URL('/internal/runners/link', controlUrl);
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    const socket = new WebSocket(url, {
      headers: { authorization: `Bearer ${token}` },
      handshakeTimeout: CONNECT_DEADLINE_MS,
      maxPayload: LINK_MESSAGE_MAX_BYTES,
      perMessageDeflate: false,
    });
    // Also while it is still dialling: a link that opens after the close would never end.
    const hangUp = (): void => socket.close(1000);
    this.#closing.signal.addEventListener('abort', hangUp, { once: true });
    return new Promise((resolve) => {
      let why = 'the connection was closed';
      let heardAt = performance.now();
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
        this.#socket = socket;
        this.#send(hello());
        for (const message of this.#outbox.unacknowledged()) this.#send(message);
        this.heartbeat();
        log.info({ controlUrl }, 'linked to the control plane');
      });
      socket.on('pong', () => {
        heardAt = performance.now();
      });
      socket.on('message', (data) => {
        heardAt = performance.now();
        this.#receive(data as Buffer, socket);
      });
      socket.on('error', (error) => {
        why = error.message;
      });
      socket.on('close', () => {
        clearInterval(heartbeat);
        this.#closing.signal.removeEventListener('abort', hangUp);
        if (this.#socket === socket) this.#socket = undefined;
        resolve(why);
      });
    });
  }

  #receive(data: Buffer, socket: WebSocket): void {
    let message: ControlMessage;
    try {
      message = JSON.parse(data.toString('utf8')) as ControlMessage;
    } catch {
      // The parser's own words would quote it, environments and all.
      this.#options.log.error({ bytes: data.length }, 'control sent something that is not JSON');
      socket.close(1007);
      return;
    }
    if (message.type === 'ack') {
      const stored = this.#outbox.acknowledge(message.seq);
      this.#options.onStored(stored.flatMap((said) => (said.type === 'observe' ? said.observations : [])));
      return;
    }
    this.#options.onMessage(message);
  }

  #send(message: RunnerMessage): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }
}
