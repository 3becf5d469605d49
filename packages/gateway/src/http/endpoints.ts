import { connectorOf, type Peer } from '@releap/certificates/hosts';
import { Pool } from 'undici';

export interface PoolTimeouts {
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

  get(peer: Peer): Pool {
    return this.#pools.get(peer.key, () => this.#open(peer));
  }

  #open(peer: Peer): Pool {
    const { headersMs, bodyMs } = this.#timeouts;
    return new Pool(peer.origin, {
      // Bounded by the clients' connections. A limit here would let a few long commands block all other requests.
      connections: null,
      pipelining: 1,
      connect: connectorOf(peer),
      headersTimeout: headersMs,
      bodyTimeout: bodyMs,
    });
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await this.#pools.destroy();
  }
}
