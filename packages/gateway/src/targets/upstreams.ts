import type { RequestOptions } from 'node:http';
import type { Pool } from 'undici';
import type { GrantLease } from '../control/grants.ts';
import { addressOf, EndpointPools, type PoolTimeouts } from '../http/endpoints.ts';
import { PortPools } from '../ports/port-pools.ts';
import { openPortStream } from '../ports/port-stream.ts';
import type { Route } from './target.ts';

/** What serves a request. */
export interface Upstream {
  /** For errors. */
  server: string;
  isRunner: boolean;
  pool: Pool;
  /** Opens a connection for one upgraded request. @throws ApiError */
  connect: () => Promise<Pick<RequestOptions, 'host' | 'port' | 'socketPath' | 'createConnection'>>;
}

/** Runners' data servers, and ports of guests. */
export class Upstreams {
  readonly #runners: EndpointPools;
  readonly #ports: PortPools;

  constructor(timeouts: PoolTimeouts) {
    this.#runners = new EndpointPools(timeouts);
    this.#ports = new PortPools(timeouts);
  }

  of({ port }: Pick<Route, 'port'>, lease: GrantLease): Upstream {
    return port === undefined ? this.#runner(lease) : this.#guest(lease, port);
  }

  #runner({ dataUrl }: GrantLease): Upstream {
    return {
      server: 'the machine that runs the sandbox',
      isRunner: true,
      pool: this.#runners.get(dataUrl),
      connect: async () => addressOf(dataUrl),
    };
  }

  #guest(lease: GrantLease, port: number): Upstream {
    return {
      server: `the server at port ${port} of the sandbox`,
      isRunner: false,
      pool: this.#ports.get(lease, port),
      connect: async () => {
        const socket = await openPortStream(lease, port);
        return { createConnection: () => socket };
      },
    };
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await Promise.all([this.#runners.destroy(), this.#ports.destroy()]);
  }
}
