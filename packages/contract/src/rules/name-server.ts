import { isIP } from 'node:net';

export interface NameServer {
  address: string;
  port: number;
}

const MAX_SERVERS = 3;

/** `nameserver` lines of a resolv.conf(5), the first three, as the C library uses them. */
export function parseResolvConf(text: string): NameServer[] {
  const servers: NameServer[] = [];
  for (const line of text.split('\n')) {
    const match = /^\s*nameserver\s+(\S+)/.exec(line);
    if (match?.[1] !== undefined && isIP(match[1].split('%')[0] ?? '') !== 0) {
      servers.push({ address: match[1], port: 53 });
    }
  }
  return servers.slice(0, MAX_SERVERS);
}

/** `1.2.3.4`, `1.2.3.4:5353` or an IPv6 address (with a port: `[::1]:5353`). */
export function parseNameServer(text: string): NameServer {
  const match = /^\[([^\]]+)\](?::(\d{1,5}))?$|^([\d.]+)(?::(\d{1,5}))?$/.exec(text);
  const address = match?.[1] ?? match?.[3] ?? text;
  const port = Number(match?.[2] ?? match?.[4] ?? 53);
  if (isIP(address) === 0 || port < 1 || port > 65_535) {
    throw new Error(`DNS upstream ${JSON.stringify(text)} must be an IP address, optionally with a port`);
  }
  return { address, port };
}

/** As `parseNameServer` reads it. */
export function formatNameServer({ address, port }: NameServer): string {
  return address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
}
