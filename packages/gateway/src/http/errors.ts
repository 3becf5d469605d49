import type { ServerResponse } from 'node:http';
import {
  ApiError,
  badGateway,
  errorBody,
  gatewayTimeout,
  internalError,
  REQUEST_ID_HEADER,
  unavailable,
} from '@releap/contract';
import { errors } from 'undici';

/** Nothing listens at the address, so nothing was sent. A runner that is restarted, as for an upgrade, listens again within seconds. */
const NOT_LISTENING: ReadonlySet<string | undefined> = new Set(['ECONNREFUSED', 'ENOENT']);

export { ClientDisconnected } from '@releap/contract/response-pump';

/** The client's error for a failed request to a runner or to the control plane; `who` did not respond. */
export function upstreamError(error: unknown, who: string): ApiError {
  if (error instanceof ApiError) return error;
  if (
    error instanceof errors.HeadersTimeoutError ||
    error instanceof errors.BodyTimeoutError ||
    error instanceof errors.ConnectTimeoutError ||
    (error instanceof Error && error.name === 'TimeoutError')
  ) {
    return gatewayTimeout(`${who} did not answer in time`);
  }
  if (isSystemError(error) && NOT_LISTENING.has(error.code)) {
    const wrapped = unavailable(`${who} is not running at the moment`);
    wrapped.cause = error;
    return wrapped;
  }
  if (
    error instanceof errors.UndiciError ||
    error instanceof errors.HTTPParserError ||
    isSystemError(error)
  ) {
    const wrapped = badGateway(`${who} did not answer`);
    wrapped.cause = error;
    return wrapped;
  }
  return internalError(error);
}

/**
 * Responds with the body of the error, and the id that the response has already as a header. If the client is still sending an unread body, the connection is closed: the rest could be
 * parsed as a request.
 */
export function sendError(response: ServerResponse, error: ApiError, keepAlive: boolean): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const body = Buffer.from(JSON.stringify(errorBody(error, String(response.getHeader(REQUEST_ID_HEADER)))));
  response.writeHead(error.status, {
    ...error.headers,
    'content-type': 'application/json; charset=utf-8',
    'content-length': body.length,
    'cache-control': 'no-store',
    ...(keepAlive ? {} : { connection: 'close' }),
  });
  response.end(body);
}

function isSystemError(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && typeof (error as NodeJS.ErrnoException).code === 'string';
}
