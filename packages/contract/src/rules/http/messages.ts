/**
 * Requests and responses as every server and proxy of the service handles them: their id, end-to-end headers, an unread
 * body.
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';

/** The request id correlates the log lines of gateway, control plane and host. */
export const REQUEST_ID_HEADER = 'x-request-id';

/** @returns a function that returns the client's id if it is well-formed, else a generated one */
export function requestIdSource(): (given: string | string[] | undefined) => string {
  const start = Date.now().toString(36);
  let counter = 0;
  return (given) => {
    if (typeof given === 'string' && /^[A-Za-z0-9._-]{1,100}$/.test(given)) return given;
    counter = (counter + 1) % Number.MAX_SAFE_INTEGER;
    return `${start}-${counter.toString(36)}`;
  };
}

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

/** Bounds of the unread rest of a body that is discarded before the response is sent. */
const DISCARD_BYTES = 16 * 1024 * 1024;
const DISCARD_MS = 2_000;

/**
 * Discards the rest of a request body that is not read to the end: a client that is still sending would otherwise see a broken
 * connection instead of the response. @returns whether the body has ended, so that the connection may be used again
 */
export async function discardBody(request: IncomingMessage): Promise<boolean> {
  if (request.complete || request.destroyed) return request.complete;
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, DISCARD_MS);
  let bytes = 0;
  const onData = (chunk: Buffer): void => {
    bytes += chunk.length;
    if (bytes > DISCARD_BYTES) resolve();
  };
  request.unpipe();
  request.on('data', onData).once('end', resolve).once('close', resolve);
  request.resume();
  await promise;
  clearTimeout(timer);
  request.off('data', onData).off('end', resolve).off('close', resolve);
  return request.complete;
}
