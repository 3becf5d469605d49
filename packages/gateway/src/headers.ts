/** Which headers cross the gateway, in either direction. */
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from 'node:http';

/** They concern one connection only (RFC 9110 section 7.6.1, with the names older software uses). */
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/**
 * What must not reach a sandbox or its runner: every credential, and what claims to know where the caller is.
 * `expect` is answered here, `host` and `content-length` are set anew.
 */
const STOPPED_ON_REQUESTS = new Set([
  'authorization',
  'proxy-authorization',
  'cookie',
  'expect',
  'forwarded',
  'host',
  'content-length',
  'x-api-key',
  'x-real-ip',
]);

/** What a runner says to the gateway alone. */
const STOPPED_ON_RESPONSES = new Set(['proxy-authenticate', 'set-cookie', 'www-authenticate']);

/**
 * Headers for the runner. `dataToken` takes the place of the caller's credential. `content-length` is passed
 * on when it was given, because the framing of the body must not change in a way that only one side sees.
 */
export function requestHeaders(
  headers: IncomingHttpHeaders,
  dataToken: string,
): Record<string, string | string[]> {
  const kept = keep(headers, (name) => STOPPED_ON_REQUESTS.has(name) || name.startsWith('x-forwarded-'));
  const length = headers['content-length'];
  if (length !== undefined) kept['content-length'] = length;
  kept['authorization'] = `Bearer ${dataToken}`;
  return kept;
}

export function responseHeaders(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  return keep(headers, (name) => STOPPED_ON_RESPONSES.has(name));
}

/** True when the request announces a body. */
export function hasBody(headers: IncomingHttpHeaders): boolean {
  return headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0';
}

function keep(
  headers: IncomingHttpHeaders,
  stop: (name: string) => boolean,
): Record<string, string | string[]> {
  const named = new Set((headers.connection ?? '').split(',').map((name) => name.trim().toLowerCase()));
  const kept: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || HOP_BY_HOP.has(name) || named.has(name) || stop(name)) continue;
    kept[name] = value;
  }
  return kept;
}
