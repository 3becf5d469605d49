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

export interface PoolTimeouts {
  connectMs: number;
  /** Until the first byte of an answer, and between two pieces of its body. */
  headersMs: number;
  bodyMs: number;
}

/** Pools kept at most; the least recently used one is closed for a new one. */
const MAX_POOLS = 1024;

/** Kept-alive connections, one pool per server. */
export class EndpointPools {
  readonly #pools = new Map<string, Pool>();
  readonly #timeouts: PoolTimeouts;

  constructor(timeouts: PoolTimeouts) {
    this.#timeouts = timeouts;
  }

  get(url: string): Pool {
    const known = this.#pools.get(url);
    if (known !== undefined) {
      this.#pools.delete(url);
      this.#pools.set(url, known);
      return known;
    }
    const { origin, socketPath } = parseEndpoint(url);
    const { connectMs, headersMs, bodyMs } = this.#timeouts;
    const pool = new Pool(origin, {
      // Bounded by the clients' connections. A limit here would let a few long commands block all other requests.
      connections: null,
      pipelining: 1,
      connect: { timeout: connectMs, ...(socketPath === undefined ? {} : { socketPath }) },
      headersTimeout: headersMs,
      bodyTimeout: bodyMs,
    });
    this.#pools.set(url, pool);
    for (const [oldest, old] of this.#pools) {
      if (this.#pools.size <= MAX_POOLS) break;
      this.#pools.delete(oldest);
      // Its open requests still finish.
      void old.close();
    }
    return pool;
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await Promise.all([...this.#pools.values()].map((pool) => pool.destroy()));
    this.#pools.clear();
  }
}
