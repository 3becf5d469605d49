import type { Logger } from 'pino';
import { GuestClient } from '../guest/index.ts';

const CONNECT_DEADLINE_MS = 20_000;

/**
 * The connection to a sandbox's agent. It is lost when the guest violates the protocol or the agent restarts; the next
 * caller reconnects, once for all concurrent callers.
 */
export class AgentConnection {
  readonly #onOutput: (data: Buffer) => void;
  readonly #log: Logger;
  #socketPath = '';
  #client: GuestClient | undefined;
  #connecting: Promise<GuestClient> | undefined;
  #closed = false;

  constructor(onOutput: (data: Buffer) => void, log: Logger) {
    this.#onOutput = onOutput;
    this.#log = log;
  }

  /** The first connection, to an agent that may not run yet: requests are queued until it does. */
  async open(socketPath: string, signal: AbortSignal): Promise<GuestClient> {
    this.#socketPath = socketPath;
    return this.#take(await GuestClient.open(socketPath, { log: this.#log, signal }));
  }

  /** The connection to an agent that was configured before this process started; opened on first use. */
  adopt(socketPath: string): void {
    this.#socketPath = socketPath;
  }

  /** A connection to an agent that has answered. */
  async connected(): Promise<GuestClient> {
    if (this.#client !== undefined && !this.#client.closed) return this.#client;
    this.#connecting ??= GuestClient.connect(this.#socketPath, {
      log: this.#log,
      deadlineMs: CONNECT_DEADLINE_MS,
    })
      .then((client) => this.#take(client))
      .finally(() => {
        this.#connecting = undefined;
      });
    return await this.#connecting;
  }

  /** Opens a new connection; clears the agent's input if necessary. */
  async reconnect(): Promise<GuestClient> {
    this.#client?.close();
    return await this.connected();
  }

  close(): void {
    this.#closed = true;
    this.#client?.close();
  }

  #take(client: GuestClient): GuestClient {
    if (this.#closed) client.close();
    client.onEntrypointOutput(({ data }) => this.#onOutput(data));
    this.#client = client;
    return client;
  }
}
