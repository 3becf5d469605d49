import type { RequestOptions } from 'node:http';
import type { GuestService } from '@releap/contract';
import type { Pool } from 'undici';
import type { GrantLease } from '../control/grants.ts';
import { EndpointPools, type PoolTimeouts } from '../http/endpoints.ts';
import { upstreamError } from '../http/errors.ts';
import { PortPools } from '../ports/port-pools.ts';
import { openPortStream } from '../ports/port-stream.ts';
import type { Route } from './target.ts';

/** What serves a request. */
export interface Upstream {
  /** For errors. */
  server: string;
  isRunner: boolean;
  pool: Pool;
  /** Whether the newest connection reached a port of a guest at its address. */
  isAtAddress: () => boolean;
  /** Opens a connection for one upgraded request. @throws ApiError */
  connect: () => Promise<Required<Pick<RequestOptions, 'createConnection'>>>;
}

/** Runners' data servers, and servers in guests. */
export class Upstreams {
  readonly #runners: EndpointPools;
  readonly #ports: PortPools;

  constructor(timeouts: PoolTimeouts) {
    this.#runners = new EndpointPools(timeouts);
    this.#ports = new PortPools(timeouts);
  }

  of({ service }: Pick<Route, 'service'>, lease: GrantLease): Upstream {
    return service === undefined ? this.#runner(lease) : this.#guest(lease, service);
  }

  #runner({ host }: GrantLease): Upstream {
    const server = 'the machine that runs the sandbox';
    return {
      server,
      isRunner: true,
      pool: this.#runners.get(host),
      isAtAddress: () => false,
      async connect() {
        const socket = await host.dial().catch((error: unknown) => {
          throw upstreamError(error, server);
        });
        return { createConnection: () => socket };
      },
    };
  }

  #guest(lease: GrantLease, service: GuestService): Upstream {
    const ports = this.#ports.get(lease, service);
    return {
      server:
        service === 'toolbox' ? 'the toolbox of the sandbox' : `the server at port ${service} of the sandbox`,
      isRunner: false,
      pool: ports.pool,
      isAtAddress: () => ports.isAtAddress,
      connect: async () => {
        const socket = await openPortStream(lease, service, (isAtAddress) => {
          ports.isAtAddress = isAtAddress;
        });
        return { createConnection: () => socket };
      },
    };
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await Promise.all([this.#runners.destroy(), this.#ports.destroy()]);
  }
}
