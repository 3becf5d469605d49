/** Connects to the host of a connection string that accepts writes, which `pg` alone does not support. */
import { callbackify } from 'node:util';
import { Client, type ClientConfig, type PoolConfig } from 'pg';
import { type DatabaseHost, parseDatabaseUrl } from './database-url.ts';

/** Longest that one host is asked, in milliseconds: less than callers wait for a connection. All are asked at once. */
const ASK_MS = 3_000;
const ASK = { text: 'show transaction_read_only', query_timeout: ASK_MS };

/** Now no host accepts writes. */
export class NoWritableHostError extends Error {
  constructor(reasons: readonly string[], options?: ErrorOptions) {
    super(`no host of DATABASE_URL accepts writes: ${reasons.join('; ')}`, options);
  }
}

/** Options of a pool or a client, by which it connects to a host of `url` that accepts writes. One host alone is not asked. */
export function connectionTo(url: string): Pick<PoolConfig, 'connectionString' | 'Client'> {
  const { hosts, mustAcceptWrites } = parseDatabaseUrl(url);
  if (!mustAcceptWrites) return { connectionString: url };
  const primary = new PrimaryFinder(hosts);
  return {
    connectionString: hosts[0].url,
    Client: class extends PrimaryClient {
      constructor(config?: ClientConfig) {
        super(primary, config);
      }
    },
  };
}

/** A client that is not connected yet. */
export function newClient(url: string, config: ClientConfig): Client {
  const { Client: Kind = Client, connectionString } = connectionTo(url);
  return new (Kind as typeof Client)({ ...config, connectionString });
}

/** Remembers which host accepts writes, and asks all of them when that one stops to. */
class PrimaryFinder {
  readonly #hosts: readonly DatabaseHost[];
  #known: DatabaseHost | undefined;
  #search: Promise<DatabaseHost> | undefined;

  constructor(hosts: readonly DatabaseHost[]) {
    this.#hosts = hosts;
  }

  /** @throws NoWritableHostError within `ASK_MS` */
  async find(): Promise<DatabaseHost> {
    return (
      this.#known ?? (await (this.#search ??= this.#searchAll().finally(() => (this.#search = undefined))))
    );
  }

  forget(host: DatabaseHost): void {
    if (this.#known === host) this.#known = undefined;
  }

  async #searchAll(): Promise<DatabaseHost> {
    try {
      return (this.#known = await Promise.any(this.#hosts.map(askHost)));
    } catch (error) {
      const { errors } = error as AggregateError;
      const reasons = this.#hosts.map((host, index) => explain(host, (errors[index] as Error).message));
      throw new NoWritableHostError(reasons, { cause: error });
    }
  }
}

/** @throws when the host does not answer in time, or does not accept writes */
async function askHost(host: DatabaseHost): Promise<DatabaseHost> {
  const client = new Client({
    connectionString: host.url,
    connectionTimeoutMillis: ASK_MS,
    query_timeout: ASK_MS,
    application_name: 'releap-find-primary',
  });
  // Without a listener an error after the answer would end the process.
  client.on('error', () => undefined);
  try {
    await client.connect();
    if (!(await acceptsWrites(client))) throw new Error(READ_ONLY);
    return host;
  } finally {
    void client.end().catch(() => undefined);
  }
}

async function acceptsWrites(client: Client): Promise<boolean> {
  const { rows } = await client.query<{ transaction_read_only: string }>(ASK);
  return rows[0]?.transaction_read_only === 'off';
}

const READ_ONLY = 'is read-only, as a standby is';
const explain = ({ host, port }: DatabaseHost, reason: string): string => `${host}:${port}: ${reason}`;

/** Chooses its host when it connects. */
class PrimaryClient extends Client {
  readonly #primary: PrimaryFinder;

  constructor(primary: PrimaryFinder, config?: ClientConfig) {
    super(config);
    this.#primary = primary;
    // A pool listens when it has the connection: one that breaks while it is asked would end the process.
    this.on('error', () => undefined);
  }

  override connect(): Promise<void>;
  override connect(callback: (error: Error) => void): void;
  override connect(callback?: (error: Error) => void): Promise<void> | void {
    if (callback === undefined) return this.#connect();
    callbackify(() => this.#connect())(callback);
  }

  async #connect(): Promise<void> {
    const host = await this.#primary.find();
    const socket = (this as unknown as { connection: { stream: { destroyed: boolean } } }).connection.stream;
    // A pool ends the socket of a client that takes too long; connecting it again would leave a connection that has no owner.
    if (socket.destroyed) throw new Error('timeout exceeded when trying to connect');
    Object.assign(this, { host: host.host, port: host.port });
    try {
      await super.connect();
      if (!(await acceptsWrites(this))) throw new NoWritableHostError([explain(host, READ_ONLY)]);
    } catch (error) {
      // One that has no connection left is still the primary, and asking would take more.
      if (!String((error as { code?: unknown }).code).startsWith('53')) this.#primary.forget(host);
      await this.end().catch(() => undefined);
      throw error;
    }
  }
}
