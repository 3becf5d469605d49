import type { DataHosts, Peer } from '@releap/certificates/hosts';
import {
  type ApiError,
  GATEWAY_ACTIVE_MS,
  GATEWAY_GRANTS_MAX,
  type GatewayControlMessage,
  type GatewayFunction,
  type GatewayFunctionGrant,
  type GatewayGrant,
  type GatewayPressure,
  type GatewayTarget,
  notFound,
  tokenDigest,
  unauthorized,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import { traceContext } from '@releap/tracing';
import { ControlLink } from './control-link.ts';
import { InstanceLeases } from './instance-leases.ts';
import { toRefusal } from './refusal.ts';

/** Concurrent requests to control. */
const QUESTIONS_MAX = 10_000;
/** Released grants are reported to control in batches of this size. */
const RELEASE_BATCH = 100;
/** Used ones too. */
const ACTIVE_BATCH = 1_000;

/** A grant, leased for one request or connection. */
interface Lease extends Disposable {
  /** Aborted when the credential is revoked: connections that use it must be closed. */
  readonly revoked: AbortSignal;
  /** Aborted when new requests do not use the grant any more. */
  readonly retired: AbortSignal;
  /** From when new requests do not use it, on the monotonic clock. */
  readonly usableUntil: number;
}

/** This credential may call this function. */
export interface FunctionLease extends Lease {
  readonly function: GatewayFunction;
}

/** This credential may access this target at this address. */
export interface GrantLease extends Lease {
  /** UUID of the sandbox. */
  readonly vmId: string;
  /** The runner's data server. */
  readonly host: Peer;
  /** Token for the runner's data server, for this sandbox. */
  readonly dataToken: string;
  /** Of a preview: it is public. */
  readonly isPublic: boolean;
}

export interface GrantsOptions {
  /** The internal listener of the control plane. */
  control: Peer;
  /** The gateway's credential. */
  credential: () => Promise<string>;
  kinds: readonly string[];
  /** How long a request waits for a grant, in milliseconds, including the time to reconnect. */
  decisionMs: number;
  /** UUID of this process: the holder of its leases of instances. */
  gatewayId?: string;
  /** How runners are connected to. */
  hosts: DataHosts;
  /** Control wants instances to end. */
  onPressure?: (pressure: GatewayPressure) => void;
  log: Logger;
}

type Answer = GatewayGrant | GatewayFunctionGrant;

interface Entry {
  readonly key: string;
  readonly id: number;
  readonly target: GatewayTarget;
  /** The client's credential: during the request to control, and while a lease exists, which may have to be confirmed again. */
  token: string | null;
  readonly answer: PromiseWithResolvers<Answer>;
  granted: boolean;
  /** On the monotonic clock. */
  usableUntil: number;
  leases: number;
  /** Since the last report of activity. */
  wasUsed: boolean;
  readonly revoked: AbortController;
  readonly retired: AbortController;
  deadline: NodeJS.Timeout | undefined;
}

/**
 * Grants of the control plane, requested once and then cached: control pushes revocations (see gateway/messages.ts in
 * the contract). A refusal goes to all requests that wait for it and is not cached.
 */
export class Grants {
  readonly #decisionMs: number;
  readonly #link: ControlLink;
  readonly #log: Logger;
  readonly #hosts: DataHosts;
  readonly #onPressure: GrantsOptions['onPressure'];
  /** Leases of this gateway itself, over the same link. */
  readonly instances: InstanceLeases;
  /** Grants for new requests, by target and credential, least recently used first. */
  readonly #usable = new Map<string, Entry>();
  /** The same, and grants that open requests still lease. */
  readonly #byId = new Map<number, Entry>();
  readonly #activity = setInterval(() => this.reportActivity(), GATEWAY_ACTIVE_MS).unref();
  #questions = 0;
  #nextId = 1;
  #released: number[] = [];
  #wasLinked = false;

  constructor(options: GrantsOptions) {
    this.#log = options.log;
    this.#hosts = options.hosts;
    this.#decisionMs = options.decisionMs;
    this.#onPressure = options.onPressure;
    this.instances = new InstanceLeases({
      send: (message) => this.#link.send(message),
      nextId: () => this.#nextId++,
      isLive: () => this.#link.isLive,
      hosts: options.hosts,
    });
    this.#link = new ControlLink({
      ...options,
      onOpen: () => {
        this.#wasLinked = true;
        this.#askAgain();
        this.instances.connected();
      },
      onMessage: (message) => {
        if (!this.instances.receive(message)) this.#receive(message);
      },
      onClosed: () => {
        this.#expireAll();
        this.instances.disconnected();
      },
    });
  }

  /** For how many milliseconds grants may be used unless control sends something. */
  get liveForMs(): number {
    return this.#link.liveForMs;
  }

  /** Whether the control plane has accepted this gateway since its start. */
  get wasLinked(): boolean {
    return this.#wasLinked;
  }

  /** Cached grants and requests to control in progress. */
  get size(): number {
    return this.#byId.size;
  }

  /**
   * Requests a grant for a target.
   * @param token the client's credential, null for none
   * @throws ApiError control's refusal: 401, 404, 409 …; 503 while the control plane is unreachable
   */
  async lease(target: GatewayTarget, token: string | null): Promise<GrantLease> {
    const entry = this.#find(target, token);
    const answer = await entry.answer.promise;
    if (answer.type !== 'grant') throw notFound('this target is a function', 'not_found');
    const { vm_id, runner_id, data_url, data_token, public: isPublic = false } = answer;
    const host = this.#hosts.of({ runnerId: runner_id, dataUrl: data_url });
    return this.#leaseOf(entry, token, { vmId: vm_id, host, dataToken: data_token, isPublic });
  }

  /**
   * The same for a target of the kind `function`.
   * @throws ApiError as `lease`
   */
  async leaseFunction(
    target: GatewayTarget,
    token: string | null,
    onUnknown?: () => void,
  ): Promise<FunctionLease> {
    const entry = this.#find(target, token, onUnknown);
    const answer = await entry.answer.promise;
    if (answer.type !== 'function') throw notFound('this target is no function', 'not_found');
    return this.#leaseOf(entry, token, { function: answer.function });
  }

  #leaseOf<T extends object>(entry: Entry, token: string | null, facts: T): T & Lease {
    if (entry.revoked.signal.aborted) throw unauthorized('the credential was revoked');
    entry.leases++;
    entry.wasUsed = true;
    entry.token = token;
    let open = true;
    return {
      ...facts,
      revoked: entry.revoked.signal,
      retired: entry.retired.signal,
      usableUntil: entry.usableUntil,
      [Symbol.dispose]: () => {
        if (!open) return;
        open = false;
        entry.leases--;
        this.#forgetUnless(entry, this.#usable.get(entry.key) === entry);
      },
    };
  }

  /** Tells control which grants were used, or are by open requests. */
  reportActivity(): void {
    if (!this.#link.isLive) return;
    const active = [...this.#byId.values()].filter(
      (entry) => entry.granted && (entry.wasUsed || entry.leases > 0),
    );
    for (let from = 0; from < active.length; from += ACTIVE_BATCH) {
      const batch = active.slice(from, from + ACTIVE_BATCH);
      if (!this.#link.send({ type: 'active', ids: batch.map(({ id }) => id) })) return;
      for (const entry of batch) entry.wasUsed = false;
    }
  }

  /** Has a runner that accepts no connections open some to this gateway. */
  wantConnections(runnerId: string, address: string): void {
    this.#link.send({ type: 'dial', runner_id: runnerId, address });
  }

  async close(): Promise<void> {
    clearInterval(this.#activity);
    this.instances.close(unavailable('the gateway is stopping'));
    await this.#link.close();
    for (const entry of this.#byId.values()) {
      if (!entry.granted) this.#refuse(entry, unavailable('the gateway is stopping'));
    }
  }

  /** The present or pending entry of this target and credential. */
  #find(target: GatewayTarget, token: string | null, onUnknown?: () => void): Entry {
    const key = keyOf(target, token);
    const known = this.#usable.get(key);
    if (known?.granted !== true) onUnknown?.();
    if (known !== undefined) {
      if (!known.granted) return known;
      if (this.#link.isLive && known.usableUntil > performance.now()) {
        this.#usable.delete(key);
        this.#usable.set(key, known);
        return known;
      }
      this.#retire(known);
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
      wasUsed: false,
      revoked: new AbortController(),
      retired: new AbortController(),
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
    this.#link.send({
      type: 'resolve',
      id,
      target,
      ...(token === null ? {} : { token }),
      ...traceContext(),
    });
  }

  #receive(message: GatewayControlMessage): void {
    if (message.type === 'grant' || message.type === 'function') this.#grant(message);
    else if (message.type === 'pressure') this.#onPressure?.(message);
    else if (message.type === 'refusal') {
      const entry = this.#byId.get(message.id);
      if (entry !== undefined) this.#refuse(entry, toRefusal(message));
    } else if (message.type === 'revoke') {
      for (const id of message.ids) this.#revoke(id, message.disconnect);
    }
  }

  #grant(grant: Answer): void {
    const entry = this.#byId.get(grant.id);
    if (entry === undefined) return this.#release(grant.id);
    // An entry that was granted before: control has confirmed it on a new link for open requests.
    if (entry.granted) return;
    this.#answered(entry);
    entry.granted = true;
    entry.token = null;
    entry.usableUntil = performance.now() + grant.ttl_ms;
    entry.answer.resolve(grant);
    for (const oldest of this.#usable.values()) {
      if (this.#usable.size <= GATEWAY_GRANTS_MAX) break;
      if (!oldest.granted) continue;
      this.#retire(oldest);
    }
  }

  /** New requests do not use it any more. */
  #retire(entry: Entry): void {
    if (this.#usable.get(entry.key) === entry) this.#usable.delete(entry.key);
    entry.retired.abort();
    this.#forgetUnless(entry, false);
  }

  #refuse(entry: Entry, refusal: ApiError): void {
    if (entry.granted) {
      // Open requests lease it, and control has revoked it.
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
    entry.retired.abort();
    // Control has forgotten it.
    if (disconnect) {
      this.#byId.delete(id);
      entry.revoked.abort(unauthorized('the credential was revoked'));
    } else this.#forgetUnless(entry, false);
  }

  /** Forgets a grant that is neither cached for new requests nor leased by open ones. */
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

  /** A new link has no state: pending requests and leased grants are requested again. */
  #askAgain(): void {
    this.#released = [];
    for (const entry of this.#byId.values()) this.#send(entry);
  }

  /** Without a link no revocation can arrive: new requests do not use earlier grants. */
  #expireAll(): void {
    for (const entry of this.#byId.values()) {
      if (!entry.granted) continue;
      this.#usable.delete(entry.key);
      if (entry.leases === 0) this.#byId.delete(entry.id);
      entry.retired.abort();
    }
  }
}

function keyOf(target: GatewayTarget, token: string | null): string {
  // The digest, not the token: a credential must not stay in memory longer than its request.
  const digest = token === null ? '' : tokenDigest(token).toString('base64');
  return `${JSON.stringify(target)} ${digest}`;
}
