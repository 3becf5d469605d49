import {
  ApiError,
  badGateway,
  type ErrorStatus,
  GATEWAY_GRANTS_MAX,
  type GatewayControlMessage,
  type GatewayGrant,
  type GatewayTarget,
  STATUS_MEANINGS,
  tokenDigest,
  unauthorized,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import { ControlLink } from './control-link.ts';

/** Questions under way at the same time. */
const QUESTIONS_MAX = 10_000;
/** Released grants are told to control in batches of this many. */
const RELEASE_BATCH = 100;

/**
 * A decision of the control plane, held for the time of one request or connection: this credential may reach this
 * target, and there it is.
 */
export interface GrantLease extends Disposable {
  /** UUID, as the runner knows it. */
  readonly vmId: string;
  /** The runner's data server: `http://host:port` or `unix:/absolute/path.sock`. */
  readonly dataUrl: string;
  /** What opens the runner's data server for this sandbox. */
  readonly dataToken: string;
  /** Aborted when the credential was revoked: what was opened with it must be closed. */
  readonly revoked: AbortSignal;
}

export interface GrantsOptions {
  controlUrl: string;
  /** The gateway's credential. */
  credential: () => Promise<string>;
  kinds: readonly string[];
  /** How long a request waits for a decision, in milliseconds; the time to reconnect is included. */
  decisionMs: number;
  log: Logger;
}

interface Entry {
  readonly key: string;
  readonly id: number;
  readonly target: GatewayTarget;
  /** The client's credential: while control is asked, and while a lease is out, which control may have to be asked about again. */
  token: string | null;
  readonly answer: PromiseWithResolvers<GatewayGrant>;
  granted: boolean;
  /** On the monotonic clock. */
  usableUntil: number;
  leases: number;
  readonly revoked: AbortController;
  deadline: NodeJS.Timeout | undefined;
}

/**
 * The control plane's decisions, asked for once and then kept: control pushes what is not true any more (see
 * gateway/messages.ts in the contract). A refusal is given to all requests that wait for it and then forgotten.
 */
export class Grants {
  readonly #decisionMs: number;
  readonly #link: ControlLink;
  readonly #log: Logger;
  /** What new requests may use, by target and credential, least recently used first. */
  readonly #usable = new Map<string, Entry>();
  /** The same and, beside them, those that open requests still lease. */
  readonly #byId = new Map<number, Entry>();
  #questions = 0;
  #nextId = 1;
  #released: number[] = [];

  constructor(options: GrantsOptions) {
    this.#log = options.log;
    this.#decisionMs = options.decisionMs;
    this.#link = new ControlLink({
      ...options,
      onOpen: () => this.#askAgain(),
      onMessage: (message) => this.#receive(message),
      onClosed: () => this.#expireAll(),
    });
  }

  /** Grants kept and questions under way. */
  get size(): number {
    return this.#byId.size;
  }

  /**
   * The control plane's decision on a target.
   * @param token the client's credential, null when none was shown
   * @throws ApiError the refusal: 401, 404, 409 … as control words it; 503 while the control plane cannot be reached
   */
  async lease(target: GatewayTarget, token: string | null): Promise<GrantLease> {
    const entry = this.#find(target, token);
    const { vm_id, data_url, data_token } = await entry.answer.promise;
    if (entry.revoked.signal.aborted) throw unauthorized('the credential was revoked');
    entry.leases++;
    entry.token = token;
    let open = true;
    return {
      vmId: vm_id,
      dataUrl: data_url,
      dataToken: data_token,
      revoked: entry.revoked.signal,
      [Symbol.dispose]: () => {
        if (!open) return;
        open = false;
        entry.leases--;
        this.#forgetUnless(entry, this.#usable.get(entry.key) === entry);
      },
    };
  }

  async close(): Promise<void> {
    await this.#link.close();
    for (const entry of this.#byId.values()) {
      if (!entry.granted) this.#refuse(entry, unavailable('the gateway is stopping'));
    }
  }

  /** The entry that answers, or will answer, for this target and credential. */
  #find(target: GatewayTarget, token: string | null): Entry {
    // The digest and not the token: a key in memory longer than its request is a key that can leak.
    const digest = token === null ? '' : tokenDigest(token).toString('base64');
    const key = `${JSON.stringify(target)} ${digest}`;
    const known = this.#usable.get(key);
    if (known !== undefined) {
      if (!known.granted) return known;
      this.#usable.delete(key);
      if (this.#link.isLive && known.usableUntil > performance.now()) {
        this.#usable.set(key, known);
        return known;
      }
      this.#forgetUnless(known, false);
    }
    return this.#ask(key, target, token);
  }

  #ask(key: string, target: GatewayTarget, token: string | null): Entry {
    if (this.#questions >= QUESTIONS_MAX)
      throw unavailable('too many requests are waiting for the control plane; try again');
    const entry: Entry = {
      key,
      id: this.#nextId++,
      target,
      token,
      answer: Promise.withResolvers(),
      granted: false,
      usableUntil: 0,
      leases: 0,
      revoked: new AbortController(),
      deadline: undefined,
    };
    entry.deadline = setTimeout(() => {
      this.#log.warn({ target: target.kind }, 'the control plane did not answer');
      this.#refuse(entry, unavailable('the control plane does not answer; try again'));
    }, this.#decisionMs);
    this.#questions++;
    this.#usable.set(key, entry);
    this.#byId.set(entry.id, entry);
    this.#send(entry);
    return entry;
  }

  /** Without a link it is sent as soon as there is one. */
  #send({ id, target, token }: Entry): void {
    this.#link.send({ type: 'resolve', id, target, ...(token === null ? {} : { token }) });
  }

  #receive(message: GatewayControlMessage): void {
    if (message.type === 'grant') this.#grant(message);
    else if (message.type === 'refusal') {
      const entry = this.#byId.get(message.id);
      if (entry !== undefined) this.#refuse(entry, toRefusal(message.status, message.error));
    } else if (message.type === 'revoke') {
      for (const id of message.ids) this.#revoke(id, message.disconnect);
    }
  }

  #grant(grant: GatewayGrant): void {
    const entry = this.#byId.get(grant.id);
    if (entry === undefined) return this.#release(grant.id);
    // Of an entry that was granted before: control has confirmed, on a new link, what open requests use.
    if (entry.granted) return;
    this.#answered(entry);
    entry.granted = true;
    entry.token = null;
    entry.usableUntil = performance.now() + grant.ttl_ms;
    entry.answer.resolve(grant);
    for (const oldest of this.#usable.values()) {
      if (this.#usable.size <= GATEWAY_GRANTS_MAX) break;
      if (!oldest.granted) continue;
      this.#usable.delete(oldest.key);
      this.#forgetUnless(oldest, false);
    }
  }

  #refuse(entry: Entry, refusal: ApiError): void {
    if (entry.granted) {
      // Open requests lease it, and control does not stand by it any more.
      if ([401, 403, 404].includes(refusal.status)) this.#revoke(entry.id, true);
      return;
    }
    this.#answered(entry);
    this.#usable.delete(entry.key);
    this.#byId.delete(entry.id);
    entry.answer.promise.catch(() => undefined);
    entry.answer.reject(refusal);
  }

  #answered(entry: Entry): void {
    clearTimeout(entry.deadline);
    this.#questions--;
  }

  #revoke(id: number, disconnect: boolean): void {
    const entry = this.#byId.get(id);
    if (entry?.granted !== true) return;
    if (this.#usable.get(entry.key) === entry) this.#usable.delete(entry.key);
    if (disconnect) entry.revoked.abort();
    if (disconnect || entry.leases === 0) this.#byId.delete(id);
  }

  /** Forgets a grant that neither a new request may use nor an open one leases. */
  #forgetUnless(entry: Entry, usable: boolean): void {
    if (entry.leases > 0) return;
    entry.token = null;
    if (usable || !this.#byId.delete(entry.id)) return;
    this.#release(entry.id);
  }

  #release(id: number): void {
    this.#released.push(id);
    if (this.#released.length < RELEASE_BATCH) return;
    this.#link.send({ type: 'release', ids: this.#released });
    this.#released = [];
  }

  /** A new link knows of no question and of no grant: both are asked again. */
  #askAgain(): void {
    this.#released = [];
    for (const entry of this.#byId.values()) this.#send(entry);
  }

  /** Without a link nothing can be revoked: what was granted serves no new request. */
  #expireAll(): void {
    for (const entry of this.#byId.values()) {
      if (!entry.granted) continue;
      this.#usable.delete(entry.key);
      if (entry.leases === 0) this.#byId.delete(entry.id);
    }
  }
}

function toRefusal(status: number, error: string): ApiError {
  if (!(status in STATUS_MEANINGS) || status === 500)
    return badGateway('the control plane could not say where the sandbox is');
  const headers: Record<string, string> = status === 401 ? { 'www-authenticate': 'Bearer' } : {};
  return new ApiError(status as ErrorStatus, error, { headers });
}
