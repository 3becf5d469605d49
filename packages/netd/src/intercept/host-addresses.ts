import { Resolver } from 'node:dns/promises';

/** How long an address is one of its host after an answer has named it: names of many addresses get some of them each time. */
const KEPT_MS = 5 * 60_000;
const HOSTS_MAX = 1_000;

/**
 * Addresses of hosts, asked for by the interceptor itself: a guest that connects without TLS could name any host at any
 * address.
 */
export class HostAddresses {
  readonly #resolver = new Resolver({ timeout: 2_000, tries: 2 });
  /** By host: address, and until when it counts. */
  readonly #known = new Map<string, Map<string, number>>();

  /** @param servers `address` or `address:port` */
  use(servers: readonly string[]): void {
    this.#resolver.setServers(servers);
    this.#known.clear();
  }

  async has(host: string, address: string): Promise<boolean> {
    const known = this.#known.get(host) ?? new Map<string, number>();
    if ((known.get(address) ?? 0) > performance.now()) return true;
    const found = await this.#resolver.resolve4(host).catch((): string[] => []);
    const until = performance.now() + KEPT_MS;
    for (const one of found) known.set(one, until);
    for (const [one, end] of known) if (end < performance.now()) known.delete(one);
    if (this.#known.size >= HOSTS_MAX) this.#known.clear();
    this.#known.set(host, known);
    return found.includes(address);
  }
}
