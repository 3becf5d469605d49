import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { PassThrough, type Readable } from 'node:stream';
import { type ApiError, badGateway, badRequest } from '@releap/contract';
import type { Dispatcher, Pool } from 'undici';
import { CallerGone, upstreamError } from './errors.ts';
import { hasBody, requestHeaders, responseHeaders } from './headers.ts';

export interface ProxyRequest {
  pool: Pool;
  /** Path and query at the runner. */
  path: string;
  dataToken: string;
  /** Largest request body in bytes. */
  maxBodyBytes: number;
  /** Milliseconds that an upload may stand still. */
  uploadIdleMs: number;
  /** Milliseconds that an answer may stand still because the caller does not read it. */
  idleMs: number;
  /** The caller waits for `100 Continue` before it sends the body. */
  expectsContinue: boolean;
}

/**
 * Passes one request on and streams the answer back, each no faster than its reader takes it. Resolves when the
 * answer has been handed over; rejects with the refusal to send, or with `CallerGone`.
 */
export async function proxy(
  request: IncomingMessage,
  response: ServerResponse,
  options: ProxyRequest,
): Promise<void> {
  const { pool, path, dataToken, maxBodyBytes, uploadIdleMs, idleMs } = options;
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > maxBodyBytes) throw bodyTooLarge(maxBodyBytes);
  let body: Readable | null = null;
  if (hasBody(request.headers)) {
    if (options.expectsContinue) response.writeContinue();
    body = boundedBody(request, maxBodyBytes, uploadIdleMs);
  }
  try {
    await new Promise<void>((resolve, reject) => {
      const handler = new AnswerHandler(response, idleMs, resolve, (error) => {
        // What killed the body is the better explanation than that undici saw it die.
        reject(body?.errored ?? error);
      });
      pool.dispatch(
        {
          method: request.method as Dispatcher.HttpMethod,
          path,
          headers: requestHeaders(request.headers, dataToken),
          body,
        },
        handler,
      );
    });
  } catch (error) {
    if (error instanceof CallerGone) throw error;
    throw upstreamError(error, 'the machine that runs the sandbox');
  } finally {
    body?.destroy();
  }
}

/** The caller's body, cut off when it is too long or stands still. */
function boundedBody(request: IncomingMessage, maxBytes: number, idleMs: number): Readable {
  const body = new PassThrough();
  let size = 0;
  const timer = setTimeout(() => {
    // Standing still because the runner does not take it is not the caller's fault; then the runner's own deadline counts.
    if (body.writableNeedDrain) timer.refresh();
    else body.destroy(requestTimeout(idleMs));
  }, idleMs);
  request.on('data', (chunk: Buffer) => {
    timer.refresh();
    size += chunk.length;
    if (size > maxBytes) body.destroy(bodyTooLarge(maxBytes));
  });
  request.on('aborted', () => body.destroy(new CallerGone()));
  request.on('error', () => body.destroy(new CallerGone()));
  body.on('error', () => {});
  body.on('close', () => {
    clearTimeout(timer);
    request.unpipe(body);
  });
  request.on('end', () => clearTimeout(timer));
  request.pipe(body);
  return body;
}

/** Writes what the runner answers to the caller. */
class AnswerHandler implements Dispatcher.DispatchHandler {
  readonly #response: ServerResponse;
  readonly #idleMs: number;
  readonly #resolve: () => void;
  readonly #reject: (error: Error) => void;
  #stuck: NodeJS.Timeout | undefined;

  constructor(response: ServerResponse, idleMs: number, resolve: () => void, reject: (error: Error) => void) {
    this.#response = response;
    this.#idleMs = idleMs;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    const gone = () => {
      if (!this.#response.writableFinished) controller.abort(new CallerGone());
    };
    if (this.#response.destroyed) gone();
    else this.#response.once('close', gone);
    this.#response.on('drain', () => {
      clearTimeout(this.#stuck);
      controller.resume();
    });
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: IncomingHttpHeaders,
  ): void {
    if (status < 200) return;
    if (status === 401) {
      // It is our token that the runner refused; the caller's was good.
      controller.abort(badGateway('the machine that runs the sandbox refused the gateway'));
      return;
    }
    this.#response.writeHead(status, responseHeaders(headers));
    this.#response.flushHeaders();
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#response.write(chunk)) return;
    controller.pause();
    this.#stuck = setTimeout(() => this.#response.destroy(), this.#idleMs);
  }

  onResponseEnd(): void {
    clearTimeout(this.#stuck);
    this.#response.end();
    this.#resolve();
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    clearTimeout(this.#stuck);
    this.#reject(error);
  }
}

function bodyTooLarge(maxBytes: number): ApiError {
  return badRequest(`the request body is larger than ${maxBytes} bytes`);
}

function requestTimeout(idleMs: number): ApiError {
  return badRequest(`the request body stood still for ${idleMs} ms`);
}
