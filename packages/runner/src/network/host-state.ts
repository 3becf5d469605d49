/** What the machine's network looks like now, asked from `ip -j`. */
import { readdir } from 'node:fs/promises';
import { type Cidr, parseCidr } from '@releap/contract/netd';
import { run } from '../process/index.ts';

/** Where iproute2 keeps named namespaces. */
export const NETNS_DIR = '/run/netns';

interface LinkRow {
  ifname: string;
}

interface AddressRow {
  ifname: string;
  addr_info?: { family?: string; local?: string; prefixlen?: number }[];
}

interface RouteRow {
  dst?: string;
  dev?: string;
}

/** Names of all links in this process's namespace (`/sys/class/net` may show another one's). */
export async function listLinks(): Promise<string[]> {
  return parseJson<LinkRow>(await run('ip', ['-j', 'link', 'show'])).map((link) => link.ifname);
}

/** Names of all named network namespaces. */
export async function listNetns(): Promise<string[]> {
  try {
    return await readdir(NETNS_DIR);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

/** The IPv4 addresses of this host, but those of loopback interfaces and of interfaces for which `isOurs` is true. */
export async function listHostAddresses(isOurs: (ifname: string) => boolean): Promise<string[]> {
  const rows = parseJson<AddressRow>(await run('ip', ['-j', '-4', 'address', 'show', 'scope', 'global']));
  const addresses = rows
    .filter(({ ifname }) => ifname !== undefined && !isOurs(ifname))
    .flatMap(({ addr_info: infos = [] }) => infos.flatMap(({ local }) => local ?? []));
  return [...new Set(addresses)].sort();
}

/**
 * Every IPv4 prefix that is in use: addresses and routes of all tables, but the default routes, and but those of
 * interfaces for which `isOurs` is true.
 */
export async function listUsedPrefixes(isOurs: (ifname: string) => boolean): Promise<Cidr[]> {
  const [addresses, routes] = await Promise.all([
    run('ip', ['-j', '-4', 'address', 'show']),
    run('ip', ['-j', '-4', 'route', 'show', 'table', 'all']),
  ]);
  const used: Cidr[] = [];
  for (const row of parseJson<AddressRow>(addresses)) {
    if (isOurs(row.ifname)) continue;
    for (const info of row.addr_info ?? []) add(used, `${info.local ?? ''}/${info.prefixlen ?? 32}`);
  }
  for (const row of parseJson<RouteRow>(routes)) {
    if (row.dst === undefined || row.dst === 'default' || (row.dev !== undefined && isOurs(row.dev)))
      continue;
    add(used, row.dst);
  }
  return used;
}

function add(used: Cidr[], text: string): void {
  const cidr = parseCidr(text);
  if (cidr !== undefined && cidr.bits > 0) used.push(cidr);
}

function parseJson<T>(text: string): T[] {
  return text.trim() === '' ? [] : (JSON.parse(text) as T[]);
}
