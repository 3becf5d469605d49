/** The headers of a spawn that its handler gets later, as that of a call gets them at once. */
import type { IncomingHttpHeaders } from 'node:http';
import {
  badRequest,
  BOUNDS,
  COMPAT_PREVIEW_TOKEN_HEADER,
  keepEndToEnd,
  PREVIEW_TOKEN_HEADER,
  SERVICE_HEADER_PREFIX,
} from '@releap/contract';

export type PayloadHeaders = Record<string, string | string[]>;

/** Of the request itself, of its connection, or credentials. What gateways take from handlers is removed there. */
const OF_THE_REQUEST = new Set([
  'authorization',
  'content-length',
  'content-type',
  'cookie',
  'expect',
  'host',
  'proxy-authorization',
  PREVIEW_TOKEN_HEADER,
  COMPAT_PREVIEW_TOKEN_HEADER,
]);

/**
 * @returns undefined when there are none
 * @throws 400 when they are larger than `BOUNDS.payloadHeaderBytes`
 */
export function payloadHeaders(headers: IncomingHttpHeaders): PayloadHeaders | undefined {
  const kept = keepEndToEnd(
    headers,
    (name) =>
      OF_THE_REQUEST.has(name) || name.startsWith(SERVICE_HEADER_PREFIX) || name.startsWith('x-forwarded-'),
  );
  if (Object.keys(kept).length === 0) return undefined;
  const bytes = Buffer.byteLength(JSON.stringify(kept));
  if (bytes > BOUNDS.payloadHeaderBytes)
    throw badRequest(
      `the headers for the handler have ${bytes} bytes: at most ${BOUNDS.payloadHeaderBytes} are stored with an invocation`,
    );
  return kept;
}
