import { lookup, Resolver } from 'node:dns/promises';
import { isIP } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const POLL_MS = 2_000;
const QUERY_MS = 3_000;

export interface VisibilityOptions {
  /** `address` or `address:port`. Absent: the authoritative servers of the record's zone. */
  servers?: readonly string[];
  /** Longest wait; 0: none. */
  waitMs: number;
  signal: AbortSignal;
}

/**
 * Waits until all servers answer with a TXT record: secondary servers get it later than the primary one, and an authority may
 * ask any of them.
 * @throws an error for people after the longest wait
 */
export async function untilVisible(
  name: string,
  value: string,
  { servers, waitMs, signal }: VisibilityOptions,
): Promise<void> {
  const end = performance.now() + waitMs;
  if (waitMs === 0) return;
  for (;;) {
    signal.throwIfAborted();
    // Looked up each time: the first attempt may fail, and it costs little.
    const asked = servers ?? (await authoritativeServers(name));
    const missing = await missingAt(asked, name, value);
    if (asked.length > 0 && missing.length === 0) return;
    if (performance.now() > end) {
      const where = asked.length === 0 ? 'no authoritative server was found' : `not at ${missing.join(', ')}`;
      throw new Error(
        `the TXT record ${name} is not visible after ${waitMs / 1000} s: ${where} ` +
          '(RELEAP_ACME_DNS_RESOLVERS, RELEAP_ACME_DNS_WAIT_SECONDS)',
      );
    }
    await sleep(POLL_MS, undefined, { signal });
  }
}

async function missingAt(servers: readonly string[], name: string, value: string): Promise<string[]> {
  const found = await Promise.all(
    servers.map(async (server) => {
      const resolver = newResolver();
      resolver.setServers([server]);
      const records = await resolver.resolveTxt(name).catch(() => []);
      return records.some((parts) => parts.join('') === value);
    }),
  );
  return servers.filter((_server, index) => found[index] !== true);
}

/** Addresses of the servers of the closest zone above a name. */
async function authoritativeServers(name: string): Promise<string[]> {
  const labels = name.split('.');
  for (let cut = 1; cut < labels.length; cut++) {
    const hosts = await newResolver()
      .resolveNs(labels.slice(cut).join('.'))
      .catch(() => []);
    if (hosts.length === 0) continue;
    const addresses = await Promise.all(
      hosts.map(async (host) => {
        const found = await lookup(host, { all: true }).catch(() => []);
        return found.map(({ address }) => (isIP(address) === 6 ? `[${address}]` : address));
      }),
    );
    return addresses.flat();
  }
  return [];
}

const newResolver = (): Resolver => new Resolver({ timeout: QUERY_MS, tries: 1 });
