import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { ApiError, badGateway, gatewayTimeout, hasBody } from '@releap/contract';
import { type Dispatcher, errors, type Pool } from 'undici';
import { ClientDisconnected } from '../http/errors.ts';
import { requestBody } from './request-body.ts';
import type { RequestEnd } from './version-queue.ts';

export interface HandlerCallOptions {
  pool: Pool;
  path: string;
  headers: Record<string, string | string[]>;
  /** Status and headers for the client. @param elapsedMs since the request was sent */
  answer: (status: number, headers: IncomingHttpHeaders, elapsedMs: number) => [number, OutgoingHttpHeaders];
  timeoutMs: number;
  maxBodyBytes: number;
  uploadIdleMs: number;
  expectsContinue: boolean;
  /** Aborted with an `ApiError` when the request must end. */
  revoked: readonly AbortSignal[];
}

export interface HandlerOutcome {
  /** For the instance. */
  end: RequestEnd;
  /** False when nothing was sent: another instance may serve the request. */
  isSent: boolean;
  /** When the first byte was sent; null when none was. */
  startedAt: Date | null;
  /** From the first byte sent to the last one received, in milliseconds. */
  durationMs: number;
  /** The handler's; null when it did not answer. */
  status: number | null;
  /** Why the answer is missing or incomplete. */
  error: ApiError | ClientDisconnected | undefined;
  /** The handler has answered something that is not valid HTTP, or too large. */
  isInvalid: boolean;
}

/** Sends a request to a handler and streams its answer to the client, each with the back-pressure of its reader. It never throws. */
export function callHandler(
  request: IncomingMessage,
  response: ServerResponse,
  options: HandlerCallOptions,
): Promise<HandlerOutcome> {
  return new Promise((resolve) => new HandlerCall(request, response, options, resolve).start());
}

class HandlerCall implements Dispatcher.DispatchHandler {
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #options: HandlerCallOptions;
  readonly #resolve: (outcome: HandlerOutcome) => void;
  #body: ReturnType<typeof requestBody> | null = null;
  #controller: Dispatcher.DispatchController | undefined;
  #timer: NodeJS.Timeout | undefined;
  #startedAt: Date | null = null;
  #sentAt = 0;
  #status: number | null = null;
  #isInvalid = false;
  #isOver = false;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    options: HandlerCallOptions,
    resolve: (outcome: HandlerOutcome) => void,
  ) {
    this.#request = request;
    this.#response = response;
    this.#options = options;
    this.#resolve = resolve;
  }

  start(): void {
    const { pool, path, headers, timeoutMs, maxBodyBytes, uploadIdleMs, expectsContinue, revoked } =
      this.#options;
    const response = this.#response;
    if (hasBody(this.#request.headers)) {
      this.#body = requestBody(this.#request, {
        max: maxBodyBytes,
        idleMs: uploadIdleMs,
        onStart: () => {
          if (expectsContinue) response.writeContinue();
        },
      });
    }
    this.#timer = setTimeout(
      () => this.#abort(gatewayTimeout(`the handler did not answer within ${timeoutMs / 1000} s`), 'hung'),
      timeoutMs,
    );
    response.on('close', this.#onClientClosed);
    response.on('drain', this.#onDrain);
    for (const signal of revoked) signal.addEventListener('abort', this.#onRevoked);
    pool.dispatch({ method: 'POST', path, headers, body: this.#body }, this);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    if (this.#isOver) return controller.abort(new ClientDisconnected());
    this.#startedAt = new Date();
    this.#sentAt = performance.now();
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: IncomingHttpHeaders,
  ): void {
    if (status < 200 || this.#isOver) return;
    this.#status = status;
    this.#response.writeHead(...this.#options.answer(status, headers, performance.now() - this.#sentAt));
    // In one write with the first chunk of the body, if that has arrived.
    setImmediate(() => {
      if (!this.#response.writableEnded && !this.#response.destroyed) this.#response.flushHeaders();
    });
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#isOver && !this.#response.write(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    if (this.#isOver) return;
    this.#response.end();
    this.#finish('good', undefined);
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    const early = this.#body?.errored;
    if (early instanceof ClientDisconnected || early instanceof ApiError)
      return this.#finish('cancelled', early);
    this.#isInvalid = error instanceof errors.HeadersOverflowError || error instanceof errors.HTTPParserError;
    const refusal = badGateway(this.#reason(error));
    refusal.cause = error;
    this.#finish('broken', refusal);
  }

  #reason(error: Error): string {
    if (this.#startedAt === null) return `the handler cannot be reached: ${error.message}`;
    if (error instanceof errors.HeadersOverflowError) return 'the headers of the answer are too large';
    if (error instanceof errors.HTTPParserError)
      return `the handler did not answer with HTTP: ${error.message}`;
    const when = this.#status === null ? 'before it answered' : 'before its answer was complete';
    return `the handler closed the connection ${when}`;
  }

  readonly #onClientClosed = (): void => {
    if (!this.#response.writableFinished) this.#abort(new ClientDisconnected(), 'cancelled');
  };

  readonly #onDrain = (): void => this.#controller?.resume();

  readonly #onRevoked = (event: Event): void => {
    const { reason } = event.target as AbortSignal;
    // Another gateway has leased the instance since; requests of this one still complete.
    if (reason instanceof ApiError && reason.status === 409) return;
    this.#abort(reason instanceof ApiError ? reason : badGateway('the instance ended'), 'broken');
  };

  #abort(error: ApiError | ClientDisconnected, end: RequestEnd): void {
    if (this.#isOver) return;
    this.#finish(end, error);
    this.#controller?.abort(error);
  }

  #finish(end: RequestEnd, error: HandlerOutcome['error']): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.#response.off('close', this.#onClientClosed).off('drain', this.#onDrain);
    for (const signal of this.#options.revoked) signal.removeEventListener('abort', this.#onRevoked);
    this.#body?.destroy();
    const { headersSent } = this.#response;
    // A part of an answer must not look like all of it.
    if (error !== undefined && headersSent) this.#response.destroy();
    this.#resolve({
      end,
      isSent: this.#startedAt !== null,
      startedAt: this.#startedAt,
      durationMs: this.#startedAt === null ? 0 : performance.now() - this.#sentAt,
      status: this.#status,
      error,
      isInvalid: this.#isInvalid,
    });
  }
}
