import type { IncomingMessage, ServerResponse } from 'node:http';
import { PassThrough, type Readable } from 'node:stream';
import { type ApiError, badGateway, badRequest, hasBody } from '@releap/contract';
import { ResponsePump } from '@releap/contract/response-pump';
import type { Dispatcher, Pool } from 'undici';
import { traceContext } from '@releap/tracing';
import { ClientDisconnected, upstreamError } from './errors.ts';
import type { HeaderPolicy } from './headers.ts';

export interface ProxyRequest {
  pool: Pool;
  /** The upstream, in errors. */
  server: string;
  /** Whether it is the runner: its 401 is not for the client. */
  isRunner: boolean;
  /** Path and query there. */
  path: string;
  /** What opens the runner's data server. */
  dataToken: string;
  headers: HeaderPolicy;
  requestId: string;
  /** Aborted when the request must end because its credential was revoked. */
  revoked: AbortSignal;
  /** Largest request body in bytes. */
  maxBodyBytes: number;
  /** Longest time without a byte of an upload, in milliseconds. */
  uploadIdleMs: number;
  /** Longest time without the client reading the response, in milliseconds. */
  idleMs: number;
  /** The client waits for `100 Continue` before it sends the body. */
  expectsContinue: boolean;
}

/**
 * Forwards one request and streams the response back, each with the back-pressure of its reader. Resolves when the
 * response has been sent.
 * @throws ApiError the error for the client; ClientDisconnected when the client has disconnected
 */
export async function proxy(
  request: IncomingMessage,
  response: ServerResponse,
  options: ProxyRequest,
): Promise<void> {
  const { pool, path, headers, requestId, dataToken, revoked, maxBodyBytes, uploadIdleMs, idleMs } = options;
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > maxBodyBytes) throw bodyTooLarge(maxBodyBytes);
  let body: Readable | null = null;
  if (hasBody(request.headers)) {
    if (options.expectsContinue) response.writeContinue();
    body = boundedBody(request, maxBodyBytes, uploadIdleMs);
  }
  // Ends both halves: the client sees a broken response, and the runner a disconnected client.
  const cut = (): void => void response.destroy();
  try {
    await new Promise<void>((resolve, reject) => {
      const pump = new ResponsePump(response, {
        answer(status, answered) {
          // The runner refused the gateway's token; the client's credential was valid.
          if (status === 401 && options.isRunner)
            throw badGateway('the machine that runs the sandbox refused the gateway');
          return [status, headers.response(answered, requestId)];
        },
        stallMs: idleMs,
        onEnd(error) {
          if (error === undefined) resolve();
          // The reason of the early end of the body explains more than undici's error.
          else reject(body?.errored ?? error);
        },
      });
      revoked.addEventListener('abort', cut);
      pool.dispatch(
        {
          method: request.method as Dispatcher.HttpMethod,
          path,
          headers: {
            ...headers.request(request.headers, dataToken, requestId),
            // Guests get the client's.
            ...(options.isRunner ? traceContext() : {}),
          },
          body,
        },
        pump,
      );
    });
  } catch (error) {
    if (error instanceof ClientDisconnected) throw error;
    throw upstreamError(error, options.server);
  } finally {
    revoked.removeEventListener('abort', cut);
    body?.destroy();
  }
}

/** The client's body; an error ends it when it is too long or nothing of it arrives. */
function boundedBody(request: IncomingMessage, maxBytes: number, idleMs: number): Readable {
  const body = new PassThrough();
  let size = 0;
  const timer = setTimeout(() => {
    // While the runner does not read, the runner's own deadline applies.
    if (body.writableNeedDrain) timer.refresh();
    else body.destroy(requestTimeout(idleMs));
  }, idleMs);
  request.on('data', (chunk: Buffer) => {
    timer.refresh();
    size += chunk.length;
    if (size > maxBytes) body.destroy(bodyTooLarge(maxBytes));
  });
  request.on('aborted', () => body.destroy(new ClientDisconnected()));
  request.on('error', () => body.destroy(new ClientDisconnected()));
  body.on('error', () => {});
  body.on('close', () => {
    clearTimeout(timer);
    request.unpipe(body);
  });
  request.on('end', () => clearTimeout(timer));
  request.pipe(body);
  return body;
}

function bodyTooLarge(maxBytes: number): ApiError {
  return badRequest(`the request body is larger than ${maxBytes} bytes`, 'request_too_large');
}

function requestTimeout(idleMs: number): ApiError {
  return badRequest(`nothing of the request body arrived for ${idleMs} ms`);
}
