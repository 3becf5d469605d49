/** Requests that call functions, and the headers between clients and handlers. */
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from 'node:http';
import {
  bearerToken,
  COMPAT_PREVIEW_TOKEN_HEADER,
  type GatewayTarget,
  INVOCATION_ID_HEADER,
  keepEndToEnd,
  notFound,
  PREVIEW_TOKEN_HEADER,
  quote,
  REQUEST_ID_HEADER,
  SERVICE_HEADER_PREFIX,
  tokenKind,
  unauthorized,
} from '@releap/contract';
import type { HeaderLists } from '@releap/contract/response-pump';
import { checkFraming } from '../http/framing.ts';
import type { RequestHead } from '../targets/target.ts';

export interface FunctionCall {
  target: GatewayTarget;
  /** The client's credential; null for none, at a public endpoint. */
  token: string | null;
  isPublic: boolean;
  /** A browser asks whether it may call. */
  isPreflight: boolean;
  /** Path and query for the handler. */
  path: string;
}

const KEYED = /^\/fns\/([^/?]+)\/invoke(\?.*)?$/;
const PUBLIC = /^\/fn\/([^/?]+)\/([^/?]+)(\?.*)?$/;
const JWT = /^[\w-]+\.[\w-]+\.[\w-]+$/;

/** Whether a path may be one of a function. */
export const isFunctionPath = (url: string): boolean => url.startsWith('/fns/') || url.startsWith('/fn/');

/**
 * @returns undefined when the request calls no function
 * @throws ApiError 400, 401, 404
 */
export function routeFunctionCall(head: RequestHead): FunctionCall | undefined {
  const { method, url, headers } = head;
  const keyed = KEYED.exec(url);
  const open = keyed === null ? PUBLIC.exec(url) : null;
  if (keyed === null && open === null) return undefined;
  const isPreflight = open !== null && method === 'OPTIONS';
  if (method !== 'POST' && !isPreflight)
    throw notFound(
      `no such path: ${method} ${quote(url.split('?', 1)[0] ?? '')}; functions are called with POST`,
      'route_not_found',
    );
  checkFraming(head);
  const token = bearerToken(headers.authorization);
  if (keyed !== null) {
    // A server of the control plane shows a signed token instead of a key.
    if (token === null || (tokenKind(token) !== 'apiKey' && !JWT.test(token))) throw unauthorized();
    const target = { kind: 'function', function: decode(keyed[1]) };
    return { target, token, isPublic: false, isPreflight, path: `/${keyed[2] ?? ''}` };
  }
  const [, project, name, query = ''] = open ?? [];
  return {
    target: { kind: 'function', function: decode(name), project: decode(project) },
    // Any other is the handler's own.
    token: token !== null && tokenKind(token) === 'function' ? token : null,
    isPublic: true,
    isPreflight,
    path: `/${query}`,
  };
}

/** A name that cannot be decoded is unknown, like any other that no function has. */
function decode(segment = ''): string {
  try {
    return decodeURIComponent(segment).slice(0, 128);
  } catch {
    return segment.slice(0, 128);
  }
}

const REMOVED_REQUEST = new Set([
  'cookie',
  'content-length',
  'expect',
  'forwarded',
  'host',
  'proxy-authorization',
  'x-real-ip',
  COMPAT_PREVIEW_TOKEN_HEADER,
  PREVIEW_TOKEN_HEADER,
  REQUEST_ID_HEADER,
]);

/**
 * Functions of all tenants answer at one origin. These headers are about the whole origin, so one of them could speak for
 * another, or for the API.
 */
const REMOVED_RESPONSE = new Set([
  'alt-svc',
  'clear-site-data',
  'nel',
  'proxy-authenticate',
  'report-to',
  'reporting-endpoints',
  'service-worker-allowed',
  'set-cookie',
  'strict-transport-security',
  REQUEST_ID_HEADER,
]);

export interface CallFacts {
  isPublic: boolean;
  /** Of the peer: the client, or a proxy in front of the gateway. */
  address: string;
  /** What the peer says of its client is believed. */
  isProxy: boolean;
  /** The peer is connected over TLS. */
  isTls: boolean;
  invocationId: string;
  requestId: string;
}

/** What the handler gets is what the client sent, without credentials of the service. */
export function headersForHandler(
  headers: IncomingHttpHeaders,
  facts: CallFacts,
): Record<string, string | string[]> {
  const { isPublic, invocationId, requestId } = facts;
  const isOwn = !isPublic || isServiceCredential(headers);
  const kept = keepEndToEnd(
    headers,
    (name) =>
      (name === 'authorization' && isOwn) ||
      REMOVED_REQUEST.has(name) ||
      name.startsWith(SERVICE_HEADER_PREFIX) ||
      name.startsWith('x-forwarded-'),
  );
  const { host = 'function', 'content-length': length } = headers;
  if (length !== undefined) kept['content-length'] = length;
  kept['host'] = host;
  Object.assign(kept, forwardedHeaders(headers, facts, host));
  kept[REQUEST_ID_HEADER] = requestId;
  kept[INVOCATION_ID_HEADER] = invocationId;
  return kept;
}

/** Of the client, as a trusted proxy says it, such as the control plane; otherwise of the peer. */
function forwardedHeaders(
  headers: IncomingHttpHeaders,
  { address, isProxy, isTls }: CallFacts,
  host: string,
): Record<string, string | string[]> {
  const said = (name: string, otherwise: string): string | string[] =>
    (isProxy ? headers[name] : undefined) ?? otherwise;
  return {
    'x-forwarded-for': said('x-forwarded-for', address),
    'x-forwarded-host': said('x-forwarded-host', host),
    'x-forwarded-proto': said('x-forwarded-proto', isTls ? 'https' : 'http'),
  };
}

function isServiceCredential({ authorization }: IncomingHttpHeaders): boolean {
  const token = bearerToken(authorization);
  return token !== null && tokenKind(token) !== null;
}

/** What the client gets of the handler's headers. */
export function headersForClient(headers: HeaderLists, isPublic: boolean): OutgoingHttpHeaders {
  const kept: OutgoingHttpHeaders = keepEndToEnd(
    headers,
    (name) => REMOVED_RESPONSE.has(name) || name.startsWith(SERVICE_HEADER_PREFIX),
  );
  if (!isPublic) return kept;
  // A browser that shows an answer gives it an origin of its own.
  kept['content-security-policy'] = ['sandbox', ...(headers['content-security-policy'] ?? [])].join(', ');
  return kept;
}

/** Any site may call a public endpoint: it knows no cookies, and its token is in a header that the site must have. */
export function corsHeaders(isPreflight: boolean, requested: string | undefined): OutgoingHttpHeaders {
  if (!isPreflight) return { 'access-control-allow-origin': '*', 'access-control-expose-headers': '*' };
  return {
    'access-control-allow-origin': '*',
    'access-control-allow-methods': 'POST',
    // A wildcard would not include `Authorization`.
    'access-control-allow-headers': requested ?? '*',
    'access-control-max-age': '86400',
    vary: 'access-control-request-headers',
  };
}
