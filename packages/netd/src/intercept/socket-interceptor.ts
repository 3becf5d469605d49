import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { once } from 'node:events';
import { type DomainSet, HELPER_START_MS } from '@releap/contract/netd';
import type { Log } from '../log.ts';
import { splice } from '../splice.ts';
import { handoverLine } from './handover.ts';
import type { Interceptor, InterceptRequest } from './interceptor.ts';

const RETRY_MS = 100;

/** Hands connections over to the process that has the secrets. */
export class SocketInterceptor implements Interceptor {
  /** Where that process listens; undefined while the runner has not said so. */
  path: string | undefined;
  readonly #domainsOf: (vmId: string) => DomainSet | undefined;
  readonly #log: Log;

  /** @param domainsOf where secrets of a sandbox may be sent */
  constructor(domainsOf: (vmId: string) => DomainSet | undefined, log: Log) {
    this.#domainsOf = domainsOf;
    this.#log = log;
  }

  wants(vmId: string, host: string): boolean {
    return this.#domainsOf(vmId)?.matches(host) ?? false;
  }

  intercept(request: InterceptRequest): void {
    const { client, vmId, host } = request;
    this.#handOver(request).catch((error: unknown) => {
      this.#log.warn({ vm_id: vmId, host, why: String(error) }, 'a connection could not be intercepted');
      if (!client.destroyed) client.resetAndDestroy();
    });
  }

  async #handOver({ client, firstBytes, vmId, host, tls, address, port }: InterceptRequest): Promise<void> {
    const interceptor = await this.#connect(client);
    const abort = (): void => {
      if (!client.destroyed) client.resetAndDestroy();
      interceptor.destroy();
    };
    client.on('error', abort);
    interceptor.on('error', abort);
    if (client.destroyed) return void interceptor.destroy();
    interceptor.write(handoverLine({ vm_id: vmId, host, tls, address, port }));
    interceptor.write(firstBytes);
    splice(client, interceptor, abort);
    // An end that was seen already is not told again.
    if (client.readableEnded) interceptor.end();
  }

  async #connect(client: Socket): Promise<Socket> {
    // It may be starting.
    const end = performance.now() + HELPER_START_MS;
    for (;;) {
      try {
        if (this.path === undefined) throw new Error('there is no interceptor');
        const socket = connect({ path: this.path, allowHalfOpen: true });
        await once(socket, 'connect');
        return socket;
      } catch (error) {
        if (client.destroyed || performance.now() > end) throw error;
        await sleep(RETRY_MS);
      }
    }
  }
}
