/** One gateway's connection: it requests grants for targets, and is notified when a grant is revoked. */
import {
  ApiError,
  GATEWAY_GRANTS_MAX,
  GATEWAY_PROTOCOL,
  GATEWAY_TICK_MS,
  type GatewayControlMessage,
  GatewayMessage,
  isUuid,
  NotTriedYet,
  QuotaExceeded,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import { Check } from 'typebox/value';
import type { WebSocket } from 'ws';
import { traced } from '@releap/tracing';
import type { ListeningInstance } from '../../platform/events/event-bus.ts';
import type { GrantIndex, HeldGrant } from './grant-index.ts';
import type {
  Resolved,
  ResolvedFunction,
  ResolvedTarget,
  TargetEnd,
  TargetRequest,
  TargetResolver,
} from './target-resolver.ts';

/** Application close codes (RFC 6455 reserves 4000 to 4999 for applications). */
const CLOSE = { badMessage: 4001, slow: 4005 } as const;
/** Unsent bytes above which a gateway counts as stuck. */
const OUTBOUND_MAX_BYTES = 16 * 1024 * 1024;
/** Concurrent requests of one gateway; above, reading from its socket pauses. */
const QUESTIONS_MAX = 64;
/** Concurrent requests of one gateway for something that has to start. */
const WAITS_MAX = 4_096;
/** How long a gateway may use what it was told of a function, in milliseconds. Changes are pushed before. */
const FUNCTION_TTL_MS = 30_000;
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
  /** Grants that are kept for the gateway. Default: more than it keeps itself. */
  grantsMax?: number;
  /** Requests or connections use these sandboxes. */
  onActive: (sandboxIds: Iterable<string>) => void;
  onListening: (instances: readonly ListeningInstance[]) => void;
  /** The gateway needs connections of a runner that accepts none. */
  onDial: (runnerId: string, address: string) => void;
  log: Logger;
}

/** Retries of a lookup whose target changes meanwhile. */
const ATTEMPTS_MAX = 3;

interface Held extends HeldGrant {
  subject: string;
  /** Revoked since the lookup. */
  changed: boolean;
  readonly request: TargetRequest;
  end(how: TargetEnd): void;
}

type Question = Extract<GatewayMessage, { type: 'resolve' }>;
export class GatewayLink {
  readonly #socket: WebSocket;
  readonly #options: GatewayLinkOptions;
  readonly #held = new Map<number, Held>();
  readonly #ticker: NodeJS.Timeout;
  #gatewayId: string | undefined;
  #questions = 0;
  #waits = 0;
  readonly #grantsMax: number;

  constructor(socket: WebSocket, options: GatewayLinkOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#grantsMax = options.grantsMax ?? HELD_MAX;
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
        if (message.gateway_id !== undefined && isUuid(message.gateway_id))
          this.#gatewayId = message.gateway_id;
        return this.#send({ type: 'welcome', protocol: GATEWAY_PROTOCOL });
      case 'release':
        for (const id of message.ids) this.#forget(id, message.discard === true ? 'discarded' : 'released');
        return;
      case 'active':
        return this.#options.onActive(this.#sandboxesOf(message.ids));
      case 'dial':
        return this.#options.onDial(message.runner_id, message.address);
      case 'listening':
        return this.#listening(message.instances);
      case 'resolve':
        if (this.#options.resolvers.get(message.target.kind)?.waits === true)
          return void this.#resolveSlowly(message);
        if (++this.#questions >= QUESTIONS_MAX) this.#socket.pause();
        void this.#resolve(message).finally(() => {
          if (this.#questions-- === QUESTIONS_MAX) this.#socket.resume();
        });
        return;
    }
  }

  *#sandboxesOf(ids: readonly number[]): Iterable<string> {
    for (const id of ids) {
      const resolved = this.#held.get(id)?.resolved;
      if (resolved !== undefined && 'sandboxId' in resolved) yield resolved.sandboxId;
    }
  }

  #listening(instances: Extract<GatewayMessage, { type: 'listening' }>['instances']): void {
    const gatewayId = this.#gatewayId;
    if (gatewayId === undefined) return;
    const now = performance.now();
    const known = instances.filter(({ id }) => isUuid(id));
    this.#options.onListening(known.map(({ id, for_ms: ms }) => ({ id, gatewayId, since: now - ms })));
  }

  /** Not counted among the concurrent requests: those would wait for what this one starts. */
  async #resolveSlowly(question: Question): Promise<void> {
    if (this.#waits >= WAITS_MAX)
      return this.#refuse(question.id, unavailable('too many instances are being started; try again'));
    this.#waits++;
    await this.#resolve(question).finally(() => this.#waits--);
  }

  async #resolve(question: Question): Promise<void> {
    const { traceparent: parent, target } = question;
    if (parent === undefined) return await this.#answerTo(question);
    await traced(`resolve ${target.kind}`, () => this.#answerTo(question), { kind: 'server', parent });
  }

  async #answerTo({ id, target, token }: Question): Promise<void> {
    const { resolvers, log } = this.#options;
    let held: Held | undefined;
    let renewed: Held | undefined;
    try {
      const resolver = resolvers.get(target.kind);
      if (resolver === undefined)
        throw new ApiError(501, `targets of kind ${JSON.stringify(target.kind)} are not supported here`);
      // A renewal has the id of its lease, which stays until the renewal is decided.
      renewed = target.instance === undefined ? undefined : this.#held.get(id);
      held = renewed ?? this.#hold(id, resolver.subject(target) ?? '');
      for (let attempt = 1; ; attempt++) {
        held.changed = false;
        const resolved = await resolver.resolve(target, token, held.request);
        const answer = await this.#answer(id, resolved);
        if (this.#held.get(id) !== held) return;
        if (held.changed) {
          if (attempt < ATTEMPTS_MAX) continue;
          throw unavailable('the target keeps changing; try again');
        }
        held.resolved = resolved;
        return this.#send(answer);
      }
    } catch (error) {
      // Released meanwhile, or asked anew under the same id: no request waits for the answer.
      if (held !== undefined && this.#held.get(id) !== held) return;
      const isTemporary = !(error instanceof ApiError) || error.status === 503;
      if (renewed === undefined || !isTemporary) this.#forget(id);
      if (error instanceof ApiError && error.status !== 500) return this.#refuse(id, error);
      log.error({ err: error, kind: target.kind }, 'a target could not be resolved for a gateway');
      this.#refuse(id, unavailable('the control plane could not look up the target; try again'));
    }
  }

  async #answer(id: number, resolved: Resolved): Promise<GatewayControlMessage> {
    if ('function' in resolved) return functionMessage(id, resolved);
    const { token, ttlMs } = await this.#options.dataToken(resolved.runnerId, resolved.sandboxId);
    return grantMessage(id, resolved, token, ttlMs);
  }

  /** From here on, a change of the subject is either seen before the response is sent, or pushed after it. */
  #hold(id: number, subject: string): Held {
    this.#forget(id);
    const { grants } = this.#options;
    const aborted = new AbortController();
    const listeners: ((how: TargetEnd) => void)[] = [];
    let ended: TargetEnd | undefined;
    const held: Held = {
      subject,
      changed: false,
      request: {
        gatewayId: this.#gatewayId,
        signal: aborted.signal,
        watch: (other) => {
          if (this.#held.get(id) !== held) return;
          grants.delete(held);
          held.subject = other;
          grants.add(held);
        },
        revoke: () => this.#revoke(id, false),
        onEnd(listener) {
          if (ended === undefined) listeners.push(listener);
          else listener(ended);
        },
      },
      revoke: (disconnect) => this.#revoke(id, disconnect),
      end(how) {
        ended = how;
        aborted.abort();
        for (const listener of listeners) listener(how);
      },
    };
    this.#held.set(id, held);
    grants.add(held);
    if (this.#held.size > this.#grantsMax) this.#evict();
    return held;
  }

  /** Ends a hundredth of the grants, the oldest ones; of changed ones first, which serve only connections that have been open since. */
  #evict(): void {
    const answered = [...this.#held].filter(([, { resolved }]) => resolved !== undefined);
    const changed = answered.filter(([, held]) => held.changed);
    const present = answered.filter(([, held]) => !held.changed);
    const ids = [...changed, ...present].slice(0, Math.ceil(this.#grantsMax / 100)).map(([id]) => id);
    for (const id of ids) this.#forget(id);
    this.#send({ type: 'revoke', ids, disconnect: true });
  }

  /** Of these functions the gateway is to end instances that are idle. */
  pressure(functionIds: readonly string[]): void {
    this.#send({ type: 'pressure', function_ids: [...functionIds] });
  }

  /** These instances the gateway is to give up, as soon as they serve nothing. */
  retire(instances: readonly string[]): void {
    this.#send({ type: 'pressure', function_ids: [], instances: [...instances] });
  }

  /** Of these instances the gateway is to end up to `most` that serve nothing. */
  wantIdle(instances: readonly string[], most: number): void {
    this.#send({ type: 'pressure', function_ids: [], idle: { instances: [...instances], most } });
  }

  #refuse(id: number, refusal: ApiError): void {
    const { status, code, message: error } = refusal;
    this.#send({
      type: 'refusal',
      id,
      status,
      error,
      code,
      ...(refusal instanceof NotTriedYet && { not_tried_yet: true }),
      ...(refusal instanceof QuotaExceeded && { quota: refusal.quota }),
    });
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

  #forget(id: number, how: TargetEnd = 'released'): void {
    const held = this.#held.get(id);
    if (held === undefined) return;
    this.#held.delete(id);
    this.#options.grants.delete(held);
    held.end(how);
  }

  #send(message: GatewayControlMessage): void {
    if (this.#socket.readyState !== this.#socket.OPEN) return;
    if (this.#socket.bufferedAmount > OUTBOUND_MAX_BYTES)
      return this.close(CLOSE.slow, 'the gateway does not read');
    this.#socket.send(JSON.stringify(message));
  }

  #end(): void {
    clearInterval(this.#ticker);
    // What it was not told of yet it cannot come back for.
    for (const [id, { resolved }] of this.#held)
      this.#forget(id, resolved === undefined ? 'released' : 'disconnected');
  }
}

function functionMessage(id: number, resolved: ResolvedFunction): GatewayControlMessage {
  return {
    type: 'function',
    id,
    function: resolved.function,
    ttl_ms: remainingMs(FUNCTION_TTL_MS, resolved),
  };
}

/** Until the credential expires, but not longer than `ttlMs`. */
function remainingMs(ttlMs: number, { expiresAt }: Resolved): number {
  return Math.max(1, Math.min(ttlMs, expiresAt === undefined ? ttlMs : expiresAt.getTime() - Date.now()));
}

function grantMessage(
  id: number,
  resolved: ResolvedTarget,
  data_token: string,
  ttlMs: number,
): GatewayControlMessage {
  const { sandboxId: vm_id, runnerId: runner_id, dataUrl: data_url, endpoint } = resolved;
  return {
    type: 'grant',
    id,
    vm_id,
    runner_id,
    data_url,
    data_token,
    ttl_ms: remainingMs(ttlMs, resolved),
    ...(endpoint === undefined ? {} : { public: endpoint.public }),
  };
}
