import { callbackify } from 'node:util';
import type { GuestService } from '@releap/contract';
import { Pool } from 'undici';
import type { GrantLease } from '../control/grants.ts';
import { LruPools, type PoolTimeouts } from '../http/endpoints.ts';
import { openPortStream } from './port-stream.ts';

/** Shorter than servers keep an idle connection, which would close it while a request is on its way. */
const KEEP_ALIVE_MS = 2_000;

export interface PortPool {
  readonly pool: Pool;
  /** The newest: its data token opens further connections. */
  lease: GrantLease;
  /** Whether the newest connection reached the port at the sandbox's address. */
  isAtAddress: boolean;
}

/** Kept-alive HTTP connections to ports and toolbox daemons of guests. */
export class PortPools {
  readonly #timeouts: PoolTimeouts;
  readonly #pools = new LruPools<PortPool>(({ pool }) => pool);

  constructor(timeouts: PoolTimeouts) {
    this.#timeouts = timeouts;
  }

  get(lease: GrantLease, service: GuestService): PortPool {
    const { vmId, host } = lease;
    const entry = this.#pools.get(`${host.key} ${vmId} ${service}`, () => this.#open(lease, service));
    entry.lease = lease;
    return entry;
  }

  #open(lease: GrantLease, service: GuestService): PortPool {
    const open = callbackify(() =>
      openPortStream(entry.lease, service, (isAtAddress) => {
        entry.isAtAddress = isAtAddress;
      }),
    );
    const entry: PortPool = {
      lease,
      isAtAddress: false,
      pool: new Pool('http://sandbox', {
        connections: null,
        pipelining: 1,
        keepAliveTimeout: KEEP_ALIVE_MS,
        keepAliveMaxTimeout: KEEP_ALIVE_MS,
        headersTimeout: this.#timeouts.headersMs,
        bodyTimeout: this.#timeouts.bodyMs,
        connect: (_options, callback) =>
          open((error, socket) => {
            // Declared as an error always.
            if ((error as Error | null) === null) callback(null, socket);
            else callback(error, null);
          }),
      }),
    };
    return entry;
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await this.#pools.destroy();
  }
}
