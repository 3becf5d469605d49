import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { GATEWAY_MESSAGE_MAX_BYTES } from '@releap/contract';
import type { Database } from '@releap/database';
import { WebSocketServer } from 'ws';
import { GatewayLink, type GatewayLinkOptions } from './gateway-link.ts';
import { GrantIndex } from './grant-index.ts';
import { GrantRecheck } from './recheck.ts';
import { renewIdleLeases } from '../compat/sandbox-rows.ts';
import type { TargetResolver } from './target-resolver.ts';

/**
 * Interval at which credentials and runners of held grants are rechecked, in milliseconds. With the latency of a message
 * it bounds how long a revoked credential still works: one second.
 */
export const RECHECK_MS = 400;

/** With `GATEWAY_ACTIVE_MS` less than the shortest idle time, which is a minute. */
export const ACTIVITY_MS = 10_000;

export interface GatewayLinksOptions extends Omit<GatewayLinkOptions, 'grants' | 'resolvers' | 'onActive'> {
  database: Database;
  resolvers: readonly TargetResolver[];
}

/** The gateways that are connected to this server. */
export class GatewayLinks {
  readonly #options: GatewayLinksOptions;
  readonly #resolvers: ReadonlyMap<string, TargetResolver>;
  readonly #grants = new GrantIndex();
  readonly #recheck: GrantRecheck;
  readonly #links = new Set<GatewayLink>();
  /** Sandboxes with activity that is not written yet. */
  readonly #active = new Set<string>();
  readonly #sockets = new WebSocketServer({
    noServer: true,
    maxPayload: GATEWAY_MESSAGE_MAX_BYTES,
    perMessageDeflate: false,
  });

  constructor(options: GatewayLinksOptions) {
    this.#options = options;
    this.#recheck = new GrantRecheck(options.database, this.#grants);
    this.#resolvers = new Map(options.resolvers.map((resolver) => [resolver.kind, resolver]));
  }

  get connected(): number {
    return this.#links.size;
  }

  get grants(): number {
    return this.#grants.size;
  }

  /** Accepts an authenticated connection. */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    this.#sockets.handleUpgrade(request, socket, head, (webSocket) => {
      const link = new GatewayLink(webSocket, {
        ...this.#options,
        resolvers: this.#resolvers,
        grants: this.#grants,
        onActive: (ids) => {
          for (const id of ids) this.#active.add(id);
        },
      });
      this.#links.add(link);
      webSocket.once('close', () => this.#links.delete(link));
    });
  }

  /** Tells every gateway to end idle instances of these functions. */
  pressure(functionIds: readonly string[]): void {
    for (const link of this.#links) link.pressure(functionIds);
  }

  /** Tells every gateway to give up these instances, as soon as they serve nothing. */
  retire(instances: readonly string[]): void {
    for (const link of this.#links) link.retire(instances);
  }

  /** Tells every gateway to end up to `most` of these instances that serve nothing. */
  wantIdle(instances: readonly string[], most: number): void {
    for (const link of this.#links) link.wantIdle(instances, most);
  }

  /** Subjects of grants have changed, on this server or another one: ids of sandboxes, or functions. */
  changed(ids: Iterable<string>): void {
    this.#grants.changed(ids);
  }

  /** Changes of other servers may have been missed. */
  mayHaveMissedChanges(): void {
    this.#grants.changedAll();
  }

  /** Revokes grants whose credential, project or runner has changed; call it every `RECHECK_MS`. */
  async recheck(): Promise<void> {
    await this.#recheck.pass();
  }

  /** Renews the idle time of sandboxes that were used; call it every `ACTIVITY_MS`. */
  async recordActivity(): Promise<void> {
    const ids = [...this.#active];
    this.#active.clear();
    try {
      await renewIdleLeases(this.#options.database.pool, ids);
    } catch (error) {
      for (const id of ids) this.#active.add(id);
      throw error;
    }
  }

  close(): void {
    for (const link of this.#links) link.close(1001, 'the control plane is stopping');
    this.#sockets.close();
  }
}
