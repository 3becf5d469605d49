import { Pool } from 'undici';

/** Address of a runner or the control plane. */
export interface Endpoint {
  /** Without path; `http://localhost` for a Unix socket. */
  origin: string;
  /** Absolute path of the Unix socket, if it is one. */
  socketPath?: string;
}

/** Reads `http://host:port` or `unix:/absolute/path.sock`. Throws on anything else. */
export function parseEndpoint(url: string): Endpoint {
  if (url.startsWith('unix:/')) return { origin: 'http://localhost', socketPath: url.slice('unix:'.length) };
  const parsed = URL.parse(url);
  if (parsed === null || parsed.protocol !== 'http:') {
    throw new Error(`endpoint ${JSON.stringify(url)} must be http://host:port or unix:/absolute/path`);
  }
  return { origin: parsed.origin };
}

/** The same for `http.request` and `net.connect`. */
export function addressOf(url: string): { socketPath: string } | { host: string; port: number } {
  const { origin, socketPath } = parseEndpoint(url);
  if (socketPath !== undefined) return { socketPath };
  const { hostname, port } = new URL(origin);
  return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? 80 : Number(port) };
}

export interface PoolTimeouts {
  connectMs: number;
  /** Until the first byte of an answer, and between two pieces of its body. */
  headersMs: number;
  bodyMs: number;
}

/** Of each kind. */
const MAX_POOLS = 1024;

/** Pools by key; the least recently used one is closed for a new one. */
export class LruPools<T> {
  readonly #entries = new Map<string, T>();
  readonly #poolOf: (entry: T) => Pool;

  constructor(poolOf: (entry: T) => Pool) {
    this.#poolOf = poolOf;
  }

  get(key: string, open: () => T): T {
    const entry = this.#entries.get(key) ?? open();
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    for (const [oldest, old] of this.#entries) {
      if (this.#entries.size <= MAX_POOLS) break;
      this.#entries.delete(oldest);
      // Its open requests still finish.
      void this.#poolOf(old).close();
    }
    return entry;
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await Promise.all([...this.#entries.values()].map((entry) => this.#poolOf(entry).destroy()));
    this.#entries.clear();
  }
}

/** Kept-alive connections, one pool per server. */
export class EndpointPools {
  readonly #pools = new LruPools<Pool>((pool) => pool);
  readonly #timeouts: PoolTimeouts;

  constructor(timeouts: PoolTimeouts) {
    this.#timeouts = timeouts;
  }

  get(url: string): Pool {
    return this.#pools.get(url, () => this.#open(url));
  }

  #open(url: string): Pool {
    const { origin, socketPath } = parseEndpoint(url);
    const { connectMs, headersMs, bodyMs } = this.#timeouts;
    return new Pool(origin, {
      // Bounded by the clients' connections. A limit here would let a few long commands block all other requests.
      connections: null,
      pipelining: 1,
      connect: { timeout: connectMs, ...(socketPath === undefined ? {} : { socketPath }) },
      headersTimeout: headersMs,
      bodyTimeout: bodyMs,
    });
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await this.#pools.destroy();
  }
}
