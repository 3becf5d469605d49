/** Headers that a proxy passes on. */
import type { IncomingHttpHeaders } from 'node:http';

/** Hop-by-hop headers (RFC 9110 section 7.6.1, with names of older software). */
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** The headers of one direction that a proxy passes on, except those of `stop`. Names are in lower case, fields may repeat. */
export function keepEndToEnd(
  headers: NodeJS.Dict<string | string[]>,
  stop: (name: string) => boolean,
): Record<string, string | string[]> {
  const named = new Set(
    String(headers['connection'] ?? '')
      .split(',')
      .map((name) => name.trim().toLowerCase()),
  );
  const kept: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || HOP_BY_HOP.has(name) || named.has(name) || stop(name)) continue;
    kept[name] = value;
  }
  return kept;
}

/** True when the request announces a body. */
export function hasBody(headers: IncomingHttpHeaders): boolean {
  return headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0';
}
