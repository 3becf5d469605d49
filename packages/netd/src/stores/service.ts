/** The store proxy as its runner sees it. */
import type { Socket } from 'node:net';
import {
  RunnerToStoreProxy,
  STORES_LINE_MAX_BYTES,
  STORES_PROTOCOL,
  type StoreProxyToRunner,
} from '@releap/contract/netd';
import { RunnerConnection } from '../runner-connection.ts';
import { StoreProxy } from './proxy.ts';

export class StoreService {
  readonly #stop: () => void;
  readonly #runner: RunnerConnection<typeof RunnerToStoreProxy, StoreProxyToRunner>;
  readonly #proxy: StoreProxy;
  #port = 0;

  /** @param stop the runner wants us to end */
  constructor(version: string, stop: () => void) {
    this.#stop = stop;
    this.#runner = new RunnerConnection<typeof RunnerToStoreProxy, StoreProxyToRunner>({
      received: RunnerToStoreProxy,
      receivedMaxBytes: STORES_LINE_MAX_BYTES,
      hello: () => ({ type: 'hello', protocol: STORES_PROTOCOL, version, port: this.#port }),
      onMessage: (message, known) => this.#onMessage(message, known),
    });
    this.#proxy = new StoreProxy(this.#runner.log);
  }

  /** How long there has been neither a runner nor a sandbox, in milliseconds. */
  get idleMs(): number {
    return this.#proxy.isEmpty ? this.#runner.aloneMs : 0;
  }

  /** For guests. */
  async listen(address: string): Promise<void> {
    this.#port = await this.#proxy.listen(address);
  }

  /** A connection of the runner. */
  accept(socket: Socket): void {
    this.#runner.accept(socket);
  }

  async close(): Promise<void> {
    this.#runner.close();
    await this.#proxy.close();
  }

  #onMessage(message: RunnerToStoreProxy, known: Set<string>): void {
    switch (message.type) {
      case 'hello':
        return this.#proxy.configure(message.private_hosts, message.extra_ca);
      case 'put':
        known.add(message.vm_id);
        this.#proxy.put(message.vm_id, message.address, message.stores);
        break;
      case 'remove':
        known.delete(message.vm_id);
        this.#proxy.remove(message.vm_id);
        break;
      case 'synced':
        this.#proxy.keepOnly(known);
        break;
      case 'ping':
        break;
      case 'stop':
        return this.#stop();
    }
    this.#runner.send({ type: 'done', seq: message.seq });
  }
}
