import type { Logger } from 'pino';
import { GuestClient } from '../guest/index.ts';

const CONNECT_DEADLINE_MS = 20_000;

/**
 * The way to one sandbox's agent. A guest that breaks the protocol, or an agent that restarts, loses the
 * connection; the next who needs it makes it again, once for all who wait.
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

  /** The first connection, to an agent that may not run yet: requests wait in order until it does. */
  async open(socketPath: string, signal: AbortSignal): Promise<GuestClient> {
    this.#socketPath = socketPath;
    return this.#take(await GuestClient.open(socketPath, { log: this.#log, signal }));
  }

  /** The line to an agent that was configured before this process began; made when it is needed. */
  adopt(socketPath: string): void {
    this.#socketPath = socketPath;
  }

  /** A connection to an agent that answers. */
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

  /** A new connection, on which the agent's input is cleared if need be. */
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
