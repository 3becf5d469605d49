import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Peer } from '@releap/certificates/hosts';
import {
  GATEWAY_LINK_PATH,
  GATEWAY_MESSAGE_MAX_BYTES,
  GATEWAY_PROTOCOL,
  GATEWAY_SILENT_MS,
  GatewayControlMessage,
  type GatewayMessage,
} from '@releap/contract';
import type { Logger } from 'pino';
import { Check } from 'typebox/value';
import { WebSocket } from 'ws';

const CONNECT_MS = 5_000;
const BACKOFF_MIN_MS = 50;
const BACKOFF_MAX_MS = 2_000;
/** Silence after which the gateway reconnects. Grants are unused long before (`GATEWAY_SILENT_MS`). */
const DEAD_MS = 5_000;
/** Without a message during so many intervals, and one more, it counts as silent. */
const LOOKS = 2;
/** Unsent bytes above which the control plane counts as stuck. */
const OUTBOUND_MAX_BYTES = 16 * 1024 * 1024;

export interface ControlLinkOptions {
  /** The internal listener of the control plane. */
  control: Pick<Peer, 'dial'>;
  /** The gateway's credential; read for each connection, so that it can be rotated while the gateway runs. */
  credential: () => Promise<string>;
  /** Kinds of targets that this gateway routes. */
  kinds: readonly string[];
  /** UUID of this process. */
  gatewayId?: string;
  log: Logger;
  /** A new connection is established: grants of an earlier one are invalid. */
  onOpen: () => void;
  onMessage: (message: GatewayControlMessage) => void;
  onClosed: () => void;
}

/** The gateway's end of its link to the control plane: one connection, always re-established. */
export class ControlLink {
  readonly #options: ControlLinkOptions;
  readonly #closing = new AbortController();
  readonly #loop: Promise<void>;
  #socket: WebSocket | undefined;
  #lastMessageAt = -Infinity;

  constructor(options: ControlLinkOptions) {
    this.#options = options;
    this.#loop = this.#keepConnected();
  }

  /** Whether revocations by control would arrive now. */
  get isLive(): boolean {
    return this.liveForMs > 0;
  }

  /** For how long that stays true without a message, in milliseconds. */
  get liveForMs(): number {
    if (this.#socket === undefined) return 0;
    return Math.max(0, GATEWAY_SILENT_MS - (performance.now() - this.#lastMessageAt));
  }

  /** @returns false when there is no connection to send it on */
  send(message: GatewayMessage): boolean {
    if (this.#socket === undefined || this.#socket.bufferedAmount > OUTBOUND_MAX_BYTES) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#loop;
  }

  async #keepConnected(): Promise<void> {
    const { log } = this.#options;
    const { signal } = this.#closing;
    let backoff = BACKOFF_MIN_MS;
    while (!signal.aborted) {
      const startedAt = performance.now();
      const reason = await this.#connect();
      if (signal.aborted) return;
      if (performance.now() - startedAt > BACKOFF_MAX_MS) backoff = BACKOFF_MIN_MS;
      log.warn({ reason, retryInMs: backoff }, 'no link to the control plane');
      await sleep(backoff, undefined, { signal }).catch(() => undefined);
      backoff = Math.min(backoff * 2, BACKOFF_MAX_MS);
    }
  }

  async #connect(): Promise<string> {
    const { signal } = this.#closing;
    let credential: string;
    try {
      credential = await this.#options.credential();
    } catch (error) {
      return `no credential: ${(error as Error).message}`;
    }
    let connection: Socket;
    try {
      connection = await this.#options.control.dial();
    } catch (error) {
      return (error as Error).message;
    }
    if (signal.aborted) connection.destroy();
    return signal.aborted ? 'the gateway is stopping' : this.#connectOnce(credential, connection);
  }

  /** One connection to its end. Resolves with the reason why it ended. */
  #connectOnce(credential: string, connection: Socket): Promise<string> {
    const { kinds, gatewayId, onClosed } = this.#options;
    const socket = new WebSocket(`ws://control${GATEWAY_LINK_PATH}`, {
      createConnection: () => connection,
      headers: { authorization: `Bearer ${credential}` },
      handshakeTimeout: CONNECT_MS,
      maxPayload: GATEWAY_MESSAGE_MAX_BYTES,
      perMessageDeflate: false,
    });
    const hangUp = (): void => socket.terminate();
    this.#closing.signal.addEventListener('abort', hangUp, { once: true });
    return new Promise((resolve) => {
      let reason = 'the connection was closed';
      // Looks since the last message, not time: a process that stalled has not read yet what has arrived meanwhile.
      let looks = 0;
      const watchdog = setInterval(() => {
        if (socket.readyState !== WebSocket.OPEN || ++looks <= LOOKS) return;
        reason = `no message for ${DEAD_MS} ms`;
        socket.terminate();
      }, DEAD_MS / LOOKS);
      socket.on('open', () => {
        this.#lastMessageAt = performance.now();
        const hello: GatewayMessage = { type: 'hello', protocol: GATEWAY_PROTOCOL, kinds: [...kinds] };
        socket.send(JSON.stringify(gatewayId === undefined ? hello : { ...hello, gateway_id: gatewayId }));
      });
      socket.on('message', (data, binary) => {
        this.#lastMessageAt = performance.now();
        looks = 0;
        if (!binary) this.#receive(socket, (data as Buffer).toString('utf8'));
      });
      socket.on('error', (error) => (reason = error.message));
      socket.on('close', (code, why) => {
        if (why.length > 0) reason = `${code} ${why.toString('utf8')}`;
        clearInterval(watchdog);
        this.#closing.signal.removeEventListener('abort', hangUp);
        if (this.#socket === socket) {
          this.#socket = undefined;
          onClosed();
        }
        resolve(reason);
      });
    });
  }

  #receive(socket: WebSocket, text: string): void {
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch {
      return;
    }
    // Messages of later versions are ignored.
    if (!Check(GatewayControlMessage, message)) return;
    if (message.type === 'welcome') {
      this.#socket = socket;
      this.#options.onOpen();
    } else if (this.#socket === socket) this.#options.onMessage(message);
  }
}
