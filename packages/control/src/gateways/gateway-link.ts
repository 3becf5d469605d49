/** One gateway's connection: it requests grants for targets, and is notified when a grant is revoked. */
import {
  ApiError,
  GATEWAY_GRANTS_MAX,
  GATEWAY_PROTOCOL,
  GATEWAY_TICK_MS,
  GatewayMessage,
  type GatewayControlMessage,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import { Check } from 'typebox/value';
import type { WebSocket } from 'ws';
import type { GrantIndex, HeldGrant } from './grant-index.ts';
import type { ResolvedTarget, TargetResolver } from './target-resolver.ts';

/** Application close codes (RFC 6455 reserves 4000 to 4999 for applications). */
const CLOSE = { badMessage: 4001, slow: 4005 } as const;
/** Unsent bytes above which a gateway counts as stuck. */
const OUTBOUND_MAX_BYTES = 16 * 1024 * 1024;
/** Concurrent requests of one gateway; above, reading from its socket pauses. */
const QUESTIONS_MAX = 64;
/** More than the gateway keeps, because it releases grants in batches and open requests hold some. */
const HELD_MAX = 4 * GATEWAY_GRANTS_MAX;

export interface DataToken {
  token: string;
  /** Validity in milliseconds from now. */
  ttlMs: number;
}

export interface GatewayLinkOptions {
  resolvers: ReadonlyMap<string, TargetResolver>;
  grants: GrantIndex;
  /** The data token of one sandbox on one runner. */
  dataToken: (runnerId: string, sandboxId: string) => Promise<DataToken>;
  log: Logger;
}

/** Retries of a lookup whose target changes meanwhile. */
const ATTEMPTS_MAX = 3;

interface Held extends HeldGrant {
  /** Revoked since the lookup. */
  changed: boolean;
}

type Question = Extract<GatewayMessage, { type: 'resolve' }>;

export class GatewayLink {
  readonly #socket: WebSocket;
  readonly #options: GatewayLinkOptions;
  readonly #held = new Map<number, Held>();
  readonly #ticker: NodeJS.Timeout;
  #questions = 0;

  constructor(socket: WebSocket, options: GatewayLinkOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#ticker = setInterval(() => this.#send({ type: 'tick' }), GATEWAY_TICK_MS);
    socket.on('message', (data, binary) => {
      if (binary) socket.close(CLOSE.badMessage, 'messages are JSON text');
      else this.#receive((data as Buffer).toString('utf8'));
    });
    socket.on('error', (error) => options.log.warn({ err: error }, 'a gateway link broke'));
    socket.on('close', () => this.#end());
  }

  close(code: number, reason: string): void {
    this.#socket.close(code, reason);
    setTimeout(() => this.#socket.terminate(), 2_000).unref();
    this.#end();
  }

  #receive(text: string): void {
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch {
      return this.#socket.close(CLOSE.badMessage, 'a message is not JSON');
    }
    // Messages of later versions are ignored.
    if (!Check(GatewayMessage, message)) return;
    switch (message.type) {
      case 'hello':
        return this.#send({ type: 'welcome', protocol: GATEWAY_PROTOCOL });
      case 'release':
        for (const id of message.ids) this.#forget(id);
        return;
      case 'resolve':
        if (++this.#questions >= QUESTIONS_MAX) this.#socket.pause();
        void this.#resolve(message).finally(() => {
          if (this.#questions-- === QUESTIONS_MAX) this.#socket.resume();
        });
        return;
    }
  }

  async #resolve({ id, target, token }: Question): Promise<void> {
    const { resolvers, dataToken, log } = this.#options;
    try {
      const resolver = resolvers.get(target.kind);
      if (resolver === undefined)
        throw new ApiError(501, `targets of kind ${JSON.stringify(target.kind)} are not supported here`);
      const held = this.#hold(id, resolver.subject(target) ?? '');
      for (let attempt = 1; ; attempt++) {
        held.changed = false;
        const resolved = await resolver.resolve(target, token);
        const { token: data_token, ttlMs } = await dataToken(resolved.runnerId, resolved.sandboxId);
        if (this.#held.get(id) !== held) return;
        if (held.changed) {
          if (attempt < ATTEMPTS_MAX) continue;
          throw unavailable('the target keeps changing; try again');
        }
        held.resolved = resolved;
        return this.#send(grantMessage(id, resolved, data_token, ttlMs));
      }
    } catch (error) {
      this.#forget(id);
      if (error instanceof ApiError && error.status !== 500)
        return this.#refuse(id, error.status, error.message);
      log.error({ err: error, kind: target.kind }, 'a target could not be resolved for a gateway');
      this.#refuse(id, 503, 'the control plane could not look up the target; try again');
    }
  }

  /** From here on, a change of the subject is either seen before the response is sent, or pushed after it. */
  #hold(id: number, subject: string): Held {
    this.#forget(id);
    const held: Held = { subject, changed: false, revoke: (disconnect) => this.#revoke(id, disconnect) };
    this.#held.set(id, held);
    this.#options.grants.add(held);
    for (const [oldest, { resolved }] of this.#held) {
      if (this.#held.size <= HELD_MAX) break;
      if (resolved === undefined) continue;
      this.#send({ type: 'revoke', ids: [oldest], disconnect: true });
      this.#forget(oldest);
    }
    return held;
  }

  #refuse(id: number, status: number, error: string): void {
    this.#send({ type: 'refusal', id, status, error });
  }

  #revoke(id: number, disconnect: boolean): void {
    const held = this.#held.get(id);
    if (held === undefined || (held.changed && !disconnect)) return;
    held.changed = true;
    if (held.resolved === undefined) return;
    // Otherwise it stays: open requests may use it, and must be ended if their credential is revoked.
    if (disconnect) this.#forget(id);
    this.#send({ type: 'revoke', ids: [id], disconnect });
  }

  #forget(id: number): void {
    const held = this.#held.get(id);
    if (held === undefined) return;
    this.#held.delete(id);
    this.#options.grants.delete(held);
  }

  #send(message: GatewayControlMessage): void {
    if (this.#socket.readyState !== this.#socket.OPEN) return;
    if (this.#socket.bufferedAmount > OUTBOUND_MAX_BYTES)
      return this.close(CLOSE.slow, 'the gateway does not read');
    this.#socket.send(JSON.stringify(message));
  }

  #end(): void {
    clearInterval(this.#ticker);
    for (const id of this.#held.keys()) this.#forget(id);
  }
}

function grantMessage(
  id: number,
  { sandboxId: vm_id, dataUrl: data_url, endpoint, expiresAt }: ResolvedTarget,
  data_token: string,
  ttlMs: number,
): GatewayControlMessage {
  const remainingMs = expiresAt === undefined ? ttlMs : expiresAt.getTime() - Date.now();
  return {
    type: 'grant',
    id,
    vm_id,
    data_url,
    data_token,
    ttl_ms: Math.max(1, Math.min(ttlMs, remainingMs)),
    ...(endpoint === undefined ? {} : { public: endpoint.public }),
  };
}
