/** The interceptor as its runner sees it. */
import type { Socket } from 'node:net';
import type { SecureContext } from 'node:tls';
import {
  INTERCEPT_LINE_MAX_BYTES,
  INTERCEPT_PROTOCOL,
  type InterceptorToRunner,
  RunnerToInterceptor,
} from '@releap/contract/netd';
import { RunnerConnection } from '../runner-connection.ts';
import { Authority } from './authority.ts';
import { readHandover } from './handover.ts';
import { Proxy } from './proxy.ts';
import { trustedAuthorities } from './upstream.ts';

const SIGN_AGAIN_MS = 10_000;

export class InterceptService {
  readonly #stop: () => void;
  readonly #runner: RunnerConnection<typeof RunnerToInterceptor, InterceptorToRunner>;
  readonly #authority = new Authority();
  readonly #proxy: Proxy;
  readonly #signing: NodeJS.Timeout;
  #trusted: SecureContext | undefined;
  #extraCa: string | undefined;

  /** @param stop the runner wants us to end */
  constructor(version: string, stop: () => void) {
    this.#stop = stop;
    this.#runner = new RunnerConnection<typeof RunnerToInterceptor, InterceptorToRunner>({
      received: RunnerToInterceptor,
      receivedMaxBytes: INTERCEPT_LINE_MAX_BYTES,
      hello: () => ({ type: 'hello', protocol: INTERCEPT_PROTOCOL, version }),
      onMessage: (message, known) => this.#onMessage(message, known),
    });
    this.#proxy = new Proxy({
      authority: this.#authority,
      trusted: () => (this.#trusted ??= trustedAuthorities(this.#extraCa)),
      log: this.#runner.log,
    });
    this.#signing = setInterval(() => void this.#requestCertificate(), SIGN_AGAIN_MS);
  }

  /** How long there has been neither a runner nor a sandbox, in milliseconds. */
  get idleMs(): number {
    return this.#proxy.isEmpty ? this.#runner.aloneMs : 0;
  }

  /** A connection of the runner. */
  accept(socket: Socket): void {
    this.#runner.accept(socket);
  }

  /** A connection that netd hands over. */
  acceptGuest(socket: Socket): void {
    readHandover(socket, (connection) => void this.#proxy.accept(socket, connection));
  }

  close(): void {
    clearInterval(this.#signing);
    this.#runner.close();
    this.#proxy.close();
  }

  #onMessage(message: RunnerToInterceptor, known: Set<string>): void {
    switch (message.type) {
      case 'hello':
        if (message.extra_ca !== this.#extraCa) {
          this.#extraCa = message.extra_ca;
          this.#trusted = undefined;
        }
        void this.#requestCertificate();
        return;
      case 'put':
        known.add(message.vm_id);
        this.#proxy.put(message.vm_id, message.secrets);
        this.#authority.setDomains(this.#proxy.domains);
        void this.#requestCertificate();
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
      case 'certificate':
        this.#authority.accept(message.request, message.certificate);
        // Sandboxes may have come since it was requested.
        return void this.#requestCertificate();
      case 'stop':
        return this.#stop();
    }
    this.#runner.send({ type: 'done', seq: message.seq });
  }

  async #requestCertificate(): Promise<void> {
    if (!this.#runner.isConnected || !this.#authority.wantsCertificate) return;
    const request = await this.#authority.request();
    this.#runner.send({ type: 'sign', request });
  }
}
