/** Sandboxes that this gateway has for itself: instances of functions (see gateway/messages.ts in the contract). */
import type { DataHosts, Peer } from '@releap/certificates/hosts';
import {
  type ApiError,
  type GatewayControlMessage,
  type GatewayGrant,
  type GatewayMessage,
  notFound,
} from '@releap/contract';
import { traceContext } from '@releap/tracing';
import { toRefusal } from './refusal.ts';

/** A lease is renewed after this share of its time. */
const RENEW_SHARE = 0.5;
const RETRY_MS = 500;
const LISTENING_BATCH = 1_000;

/** One sandbox, for this gateway alone. */
export interface InstanceLease {
  /** UUID of the sandbox. */
  readonly vmId: string;
  /** The runner's data server. */
  readonly host: Peer;
  /** The newest token for it. */
  readonly dataToken: string;
  /** Whether new requests may be sent to it now. */
  readonly isUsable: boolean;
  /** Aborted when another gateway has the instance, or it has ended; the reason is an `ApiError`. */
  readonly lost: AbortSignal;
  /** Tells control that its handler listens: its start ends. */
  listens(): void;
  /** @param discard no gateway is to lease it again */
  release(discard?: boolean): void;
}

export interface InstanceLeasesOptions {
  /** @returns false without a link */
  send: (message: GatewayMessage) => boolean;
  /** The next id of a request on the link. */
  nextId: () => number;
  isLive: () => boolean;
  hosts: DataHosts;
}

interface Entry {
  readonly id: number;
  readonly versionId: string;
  readonly answer: PromiseWithResolvers<void>;
  readonly lost: AbortController;
  grant: GatewayGrant | undefined;
  /** Control has confirmed it on the present link, and not revoked it since. */
  isConfirmed: boolean;
  /** On the monotonic clock. */
  usableUntil: number;
  /** Since when its handler listens, on the same clock. */
  listensSince: number | undefined;
  renewal: NodeJS.Timeout | undefined;
}

export class InstanceLeases {
  readonly #options: InstanceLeasesOptions;
  readonly #entries = new Map<number, Entry>();

  constructor(options: InstanceLeasesOptions) {
    this.#options = options;
  }

  /** Leases, and requests for one. */
  get size(): number {
    return this.#entries.size;
  }

  /**
   * Leases one more sandbox that serves a version; it is started if there is none. It waits as long as that takes.
   * @param signal ends the wait
   * @throws ApiError control's refusal; the signal's reason
   */
  async acquire(versionId: string, signal: AbortSignal): Promise<InstanceLease> {
    signal.throwIfAborted();
    const entry: Entry = {
      id: this.#options.nextId(),
      versionId,
      answer: Promise.withResolvers(),
      lost: new AbortController(),
      grant: undefined,
      isConfirmed: false,
      usableUntil: 0,
      listensSince: undefined,
      renewal: undefined,
    };
    this.#entries.set(entry.id, entry);
    const cancel = (): void => {
      this.#release(entry);
      entry.answer.reject(signal.reason);
    };
    signal.addEventListener('abort', cancel, { once: true });
    this.#ask(entry);
    try {
      await entry.answer.promise;
    } finally {
      signal.removeEventListener('abort', cancel);
    }
    return this.#leaseOf(entry);
  }

  /** @returns whether the message was about an instance */
  receive(message: GatewayControlMessage): boolean {
    if (message.type === 'revoke') {
      for (const id of message.ids) this.#revoke(id, message.disconnect);
      return false;
    }
    if (message.type !== 'grant' && message.type !== 'refusal') return false;
    const entry = this.#entries.get(message.id);
    if (entry === undefined) return false;
    if (message.type === 'grant') this.#grant(entry, message);
    else this.#refused(entry, toRefusal(message));
    return true;
  }

  /** A new link: leases are claimed again, and requests repeated. */
  connected(): void {
    for (const entry of this.#entries.values()) this.#ask(entry);
    this.#tell([...this.#entries.values()]);
  }

  /** Without a link another gateway may get them. */
  disconnected(): void {
    for (const entry of this.#entries.values()) entry.isConfirmed = false;
  }

  /** Refuses all that wait, and gives up the leases. */
  close(reason: ApiError): void {
    for (const entry of this.#entries.values()) {
      entry.answer.promise.catch(() => undefined);
      entry.answer.reject(reason);
      this.#release(entry);
    }
  }

  #leaseOf(entry: Entry): InstanceLease {
    const granted = (): GatewayGrant => {
      if (entry.grant === undefined) throw new Error('an instance is leased without a grant');
      return entry.grant;
    };
    const { isLive, hosts } = this.#options;
    return {
      vmId: granted().vm_id,
      get host() {
        const { runner_id: runnerId, data_url: dataUrl } = granted();
        return hosts.of({ runnerId, dataUrl });
      },
      get dataToken() {
        return granted().data_token;
      },
      get isUsable() {
        return entry.isConfirmed && isLive() && entry.usableUntil > performance.now();
      },
      lost: entry.lost.signal,
      listens: () => {
        entry.listensSince ??= performance.now();
        this.#tell([entry]);
      },
      release: (discard) => this.#release(entry, discard),
    };
  }

  /** Which of them listen. Control may have missed what it was told on an earlier link. */
  #tell(entries: readonly Entry[]): void {
    const now = performance.now();
    const instances = entries.flatMap(({ grant, listensSince: since }) =>
      grant === undefined || since === undefined
        ? []
        : [{ id: grant.vm_id, for_ms: Math.floor(now - since) }],
    );
    for (let from = 0; from < instances.length; from += LISTENING_BATCH)
      this.#options.send({ type: 'listening', instances: instances.slice(from, from + LISTENING_BATCH) });
  }

  /** Also renews. Without a link it is sent as soon as there is one. */
  #ask({ id, versionId, grant }: Entry): void {
    const instance = grant && { instance: grant.vm_id };
    this.#options.send({
      type: 'resolve',
      id,
      target: { kind: 'function-instance', version_id: versionId, ...instance },
      // Renewals belong to no request.
      ...(grant === undefined ? traceContext() : {}),
    });
  }

  #grant(entry: Entry, grant: GatewayGrant): void {
    entry.grant = grant;
    entry.isConfirmed = true;
    entry.usableUntil = performance.now() + grant.ttl_ms;
    this.#renewAfter(entry, grant.ttl_ms * RENEW_SHARE);
    entry.answer.resolve();
  }

  #renewAfter(entry: Entry, ms: number): void {
    clearTimeout(entry.renewal);
    entry.renewal = setTimeout(() => this.#ask(entry), Math.min(ms, 2 ** 31 - 1)).unref();
  }

  #refused(entry: Entry, refusal: ApiError): void {
    // Control could not look it up: the lease stays valid until the grant expires.
    if (refusal.status === 503 && entry.grant !== undefined && entry.usableUntil > performance.now()) {
      this.#renewAfter(entry, RETRY_MS);
      return;
    }
    this.#end(entry, refusal);
  }

  /** Its sandbox has changed, so control is asked whether it still serves; or nothing of its project is served any more. */
  #revoke(id: number, disconnect: boolean): void {
    const entry = this.#entries.get(id);
    if (entry?.grant === undefined) return;
    entry.isConfirmed = false;
    if (disconnect) this.#end(entry, notFound('the function is no longer there', 'function_not_found'));
    else this.#ask(entry);
  }

  #end(entry: Entry, reason: ApiError): void {
    clearTimeout(entry.renewal);
    this.#entries.delete(entry.id);
    entry.isConfirmed = false;
    entry.answer.reject(reason);
    entry.lost.abort(reason);
  }

  #release(entry: Entry, discard = false): void {
    if (!this.#entries.delete(entry.id)) return;
    clearTimeout(entry.renewal);
    entry.isConfirmed = false;
    this.#options.send({ type: 'release', ids: [entry.id], ...(discard && { discard }) });
  }
}
