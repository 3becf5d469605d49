import type { ServerResponse } from 'node:http';
import { ApiError, badGateway, gatewayTimeout, internalError } from '@releap/contract';
import { errors } from 'undici';

/** The client has closed its connection: there is nobody to answer. */
export class ClientDisconnected extends Error {
  constructor() {
    super('the client closed the connection');
    this.name = 'ClientDisconnected';
  }
}

/** The error that the client gets for a failed request to a runner or to the control plane; `who` did not answer. */
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
  if (error instanceof errors.UndiciError || isSystemError(error)) {
    const wrapped = badGateway(`${who} did not answer`);
    wrapped.cause = error;
    return wrapped;
  }
  return internalError(error);
}

/**
 * Answers with `{error}`. When the client is still sending a body that is not read, the connection is closed: what
 * follows on it could be parsed as a request.
 */
export function sendError(response: ServerResponse, error: ApiError, keepAlive: boolean): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const body = Buffer.from(JSON.stringify(error.body));
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
