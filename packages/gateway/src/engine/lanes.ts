import { createHash } from 'node:crypto';
import type { Logger } from 'pino';
import type { GrantLease } from '../control/grants.ts';
import type { AddressHold } from './address-holds.ts';
import { laneName } from './engine-config.ts';

/** A lane without requests for this long is given up. */
const IDLE_MS = 300_000;
/** Longer than the engine can be between its look-up of a lane and its connect. */
const WITHHELD_MS = 5_000;
const NOWHERE = 'addr 127.0.0.1 port 1';

export interface LanesOptions {
  count: number;
  /** File name of the map of routes. */
  routes: string;
  run: (command: string) => Promise<string>;
  log: Logger;
}

/** What a route leads to. */
export interface Destination {
  /** Of the preview, in lower case and without a port. */
  host: string;
  /** The credential that opens it; null for a public endpoint. */
  token: string | null;
  port: number;
  lease: GrantLease;
  hold: AddressHold;
}

interface Lane {
  readonly index: number;
  readonly key: string;
  readonly destination: Destination;
  /** Whether new requests are routed to it. */
  isRouted: boolean;
  expiry: NodeJS.Timeout;
  /** Requests that it has served so far, and since when. */
  requests: number;
  idleSince: number;
}

/** Key of a route: HAProxy computes the same. The digest keeps the credential out of its memory dumps and admin socket. */
function routeKey(host: string, token: string | null): string {
  return `${host}/${token === null ? '' : createHash('sha256').update(token).digest('hex').toUpperCase()}`;
}

/**
 * Servers of the engine, each of which leads to one port of one sandbox by one grant, so that a revocation ends its connections
 * and no others. A lane that is no longer routed remains while it has connections; it holds its grant, whose revocation is
 * still pushed then.
 */
export class Lanes {
  readonly #options: LanesOptions;
  readonly #used = new Map<number, Lane>();
  readonly #routes = new Map<string, Lane>();
  /** Numbers without a lane, the longest unused one first, with the time from which they may be used. */
  #free: { index: number; from: number }[];

  constructor(options: LanesOptions) {
    this.#options = options;
    this.#free = Array.from({ length: options.count }, (_, index) => ({ index: index + 1, from: 0 }));
  }

  has(host: string, token: string | null): boolean {
    return this.#routes.has(routeKey(host, token));
  }

  /** Routes further requests of this credential. Owns `lease` and `hold` from now on. */
  async add(destination: Destination): Promise<void> {
    const { host, token, port, lease, hold } = destination;
    const key = routeKey(host, token);
    const index = this.#take();
    if (index === undefined || this.#routes.has(key) || !isUsable(destination)) {
      if (index !== undefined) this.#free.unshift({ index, from: 0 });
      give(destination);
      return;
    }
    const lane: Lane = {
      index,
      key,
      destination,
      isRouted: true,
      expiry: setTimeout(
        () => this.#stopRouting(lane),
        Math.min(lease.usableUntil - performance.now(), 2 ** 31 - 1),
      ).unref(),
      requests: 0,
      idleSince: performance.now(),
    };
    this.#used.set(index, lane);
    this.#routes.set(key, lane);
    lease.retired.addEventListener('abort', () => this.#stopRouting(lane), { once: true });
    for (const signal of [lease.revoked, hold.lost])
      signal.addEventListener('abort', () => this.#end(lane), { once: true });
    const name = laneName(index);
    // In one batch: nothing comes between, and a removal comes after it.
    await Promise.all([
      this.#run(`set server guests/${name} addr ${hold.address} port ${port}`),
      this.#run(`set server guests/${name} state ready`),
      this.#run(`add map ${this.#options.routes} ${key} ${name}`),
    ]);
  }

  /** The engine could not connect to it: the gateway serves the next requests. */
  refused(host: string, token: string | null): void {
    // A public endpoint is also opened with credentials.
    const lane = this.#routes.get(routeKey(host, token)) ?? this.#routes.get(routeKey(host, null));
    if (lane !== undefined) this.#stopRouting(lane);
  }

  /** Gives up lanes without connections that are not routed or not used. */
  async reap(): Promise<void> {
    if (this.#used.size === 0) return;
    const lanes = [...this.#used.values()];
    const counts = parseServers(await this.#options.run('show stat guests 4 -1'));
    const now = performance.now();
    for (const lane of lanes) {
      const count = counts.get(laneName(lane.index));
      if (count === undefined || this.#used.get(lane.index) !== lane) continue;
      if (count.open > 0 || count.total !== lane.requests) {
        lane.requests = count.total;
        lane.idleSince = now;
      }
      if (count.open === 0 && (!lane.isRouted || now - lane.idleSince > IDLE_MS)) this.#end(lane);
    }
  }

  /** The engine has ended, and all connections with it. */
  reset(): void {
    for (const lane of this.#used.values()) this.#forget(lane);
  }

  #take(): number | undefined {
    const [next] = this.#free;
    if (next === undefined || next.from > performance.now()) {
      const [oldest] = [...this.#routes.values()].sort((a, b) => a.idleSince - b.idleSince);
      // It is free a little later, for another request.
      if (oldest !== undefined) this.#stopRouting(oldest);
      return undefined;
    }
    this.#free.shift();
    return next.index;
  }

  #stopRouting(lane: Lane): void {
    if (!lane.isRouted) return;
    lane.isRouted = false;
    this.#routes.delete(lane.key);
    void this.#run(`del map ${this.#options.routes} ${lane.key}`);
  }

  #end(lane: Lane): void {
    if (this.#used.get(lane.index) !== lane) return;
    this.#stopRouting(lane);
    const server = `guests/${laneName(lane.index)}`;
    void this.#run(`set server ${server} state maint`);
    void this.#run(`shutdown sessions server ${server}`);
    // Closes idle connections, too.
    void this.#run(`set server ${server} ${NOWHERE}`);
    this.#forget(lane);
  }

  #forget(lane: Lane): void {
    clearTimeout(lane.expiry);
    lane.isRouted = false;
    this.#used.delete(lane.index);
    this.#routes.delete(lane.key);
    this.#free.push({ index: lane.index, from: performance.now() + WITHHELD_MS });
    give(lane.destination);
  }

  /** One that fails is reported by the engine, which is killed then. */
  async #run(command: string): Promise<void> {
    const output = await this.#options.run(command).catch(() => '');
    if (/unknown|require|invalid|unable|denied/i.test(output))
      this.#options.log.error({ output: output.trim() }, 'the engine of previews refused a command');
  }
}

const isUsable = ({ lease, hold }: Destination): boolean =>
  !lease.revoked.aborted &&
  !lease.retired.aborted &&
  !hold.lost.aborted &&
  lease.usableUntil > performance.now();

function give({ lease, hold }: Destination): void {
  lease[Symbol.dispose]();
  hold.release();
}

/** Of `show stat` (CSV): open and all sessions of each server. */
export function parseServers(csv: string): Map<string, { open: number; total: number }> {
  const [head = '', ...lines] = csv.trim().split('\n');
  const columns = head.replace(/^# /, '').split(',');
  const at = (name: string): number => columns.indexOf(name);
  const [name, open, total] = [at('svname'), at('scur'), at('stot')];
  return new Map(
    lines.map((line) => {
      const fields = line.split(',');
      return [fields[name] ?? '', { open: Number(fields[open]), total: Number(fields[total]) }];
    }),
  );
}
