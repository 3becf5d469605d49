/** The interceptor as its runner sees it: there is one runner at a time, and none while it restarts. */
import type { Socket } from 'node:net';
import type { SecureContext } from 'node:tls';
import {
  INTERCEPT_LINE_MAX_BYTES,
  INTERCEPT_PROTOCOL,
  type InterceptorToRunner,
  LineReader,
  RunnerToInterceptor,
} from '@releap/contract/netd';
import type { Log } from '../log.ts';
import { runnerLog } from '../runner-log.ts';
import { Authority } from './authority.ts';
import { readHandover } from './handover.ts';
import { Proxy } from './proxy.ts';
import { trustedAuthorities } from './upstream.ts';

const SIGN_AGAIN_MS = 10_000;

export class InterceptService {
  readonly #version: string;
  readonly #stop: () => void;
  readonly #authority = new Authority();
  readonly #proxy: Proxy;
  readonly #signing: NodeJS.Timeout;
  #trusted: SecureContext | undefined;
  #extraCa: string | undefined;
  #socket: Socket | undefined;
  /** Since when there is no runner, by `performance.now()`. */
  #aloneSince = performance.now();

  /** @param stop the runner wants us to end */
  constructor(version: string, stop: () => void) {
    this.#version = version;
    this.#stop = stop;
    this.#proxy = new Proxy({
      authority: this.#authority,
      trusted: () => (this.#trusted ??= trustedAuthorities(this.#extraCa)),
      log: this.#log(),
    });
    this.#signing = setInterval(() => void this.#requestCertificate(), SIGN_AGAIN_MS);
  }

  /** How long there has been neither a runner nor a sandbox, in milliseconds. */
  get idleMs(): number {
    return this.#socket === undefined && this.#proxy.isEmpty ? performance.now() - this.#aloneSince : 0;
  }

  /** A connection of the runner. */
  accept(socket: Socket): void {
    this.#socket?.destroy();
    this.#socket = socket;
    const reader = new LineReader(RunnerToInterceptor, INTERCEPT_LINE_MAX_BYTES);
    const known = new Set<string>();
    socket.on('error', () => socket.destroy());
    socket.on('close', () => {
      if (this.#socket !== socket) return;
      this.#socket = undefined;
      this.#aloneSince = performance.now();
    });
    socket.on('data', (chunk) => {
      try {
        for (const message of reader.push(chunk))
          if (this.#socket === socket) this.#onMessage(message, known);
      } catch {
        socket.destroy();
      }
    });
    this.#send({ type: 'hello', protocol: INTERCEPT_PROTOCOL, version: this.#version });
  }

  /** A connection that netd hands over. */
  acceptGuest(socket: Socket): void {
    readHandover(socket, (connection) => void this.#proxy.accept(socket, connection));
  }

  close(): void {
    clearInterval(this.#signing);
    this.#socket?.destroy();
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
        return this.#authority.accept(message.request, message.certificate);
      case 'stop':
        return this.#stop();
    }
    this.#send({ type: 'done', seq: message.seq });
  }

  async #requestCertificate(): Promise<void> {
    if (this.#socket === undefined || !this.#authority.wantsCertificate) return;
    this.#send({ type: 'sign', request: await this.#authority.request() });
  }

  #send(message: InterceptorToRunner): void {
    this.#socket?.write(`${JSON.stringify(message)}\n`);
  }

  #log(): Log {
    return runnerLog(
      () => this.#socket?.writableLength ?? 0,
      (message) => this.#send(message),
    );
  }
}
