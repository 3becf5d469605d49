/** One request to a handler, and its answer to the client. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { ApiError, badGateway, gatewayTimeout, hasBody, unauthorized } from '@releap/contract';
import { type HeaderLists, type PumpOptions, ResponsePump } from '@releap/contract/response-pump';
import { errors } from 'undici';
import { ClientDisconnected } from '../http/errors.ts';
import type { HandlerConnection, HandlerPool } from './handler-pool.ts';
import { requestBody } from './request-body.ts';
import type { RequestEnd } from './version-queue.ts';

export interface HandlerCallOptions {
  pool: HandlerPool;
  path: string;
  headers: Record<string, string | string[]>;
  /** Status and headers for the client. @param elapsedMs since the request was sent */
  answer: (status: number, headers: HeaderLists, elapsedMs: number) => ReturnType<PumpOptions['answer']>;
  timeoutMs: number;
  maxBodyBytes: number;
  uploadIdleMs: number;
  expectsContinue: boolean;
  /** Called when the first byte is sent. */
  onSent?: () => void;
  /** Aborted when the client's credential is revoked. */
  revoked: AbortSignal;
  /** Answers a client whose credential was revoked before its answer began. */
  refuse: (error: ApiError) => void;
  /** Aborted with an `ApiError` when the instance is not there any more. */
  lost: AbortSignal;
  /** Aborted when calls without a client must end, too. */
  stopping: AbortSignal;
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
  /** Nothing is to be answered any more: the client is gone, or was refused. */
  isCut: boolean;
}

/**
 * Sends a request to a handler and streams its answer to the client, each with the back-pressure of its reader. It never throws.
 *
 * A handler works on when its client has disconnected or lost its credential. So the call lasts until the handler has answered or
 * closed the connection, at most for `timeoutMs`: it keeps its place at the instance, which serves no more requests at a time than it
 * is meant to. The handler sees the end of the client's half of the connection.
 */
export function callHandler(
  request: IncomingMessage,
  response: ServerResponse,
  options: HandlerCallOptions,
): Promise<HandlerOutcome> {
  return new Promise((resolve) => new HandlerCall(request, response, options, resolve).start());
}

class HandlerCall {
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #options: HandlerCallOptions;
  readonly #resolve: (outcome: HandlerOutcome) => void;
  readonly #pump: ResponsePump;
  #body: ReturnType<typeof requestBody> | null = null;
  #connection: HandlerConnection | undefined;
  #timer: NodeJS.Timeout | undefined;
  #startedAt: Date | null = null;
  #sentAt = 0;
  #status: number | null = null;
  #isInvalid = false;
  #isOver = false;
  /** Why nothing is answered any more. */
  #cutBy: ApiError | ClientDisconnected | undefined;

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
    this.#pump = new ResponsePump(response, {
      onSent: () => {
        this.#startedAt = new Date();
        this.#sentAt = performance.now();
        options.onSent?.();
      },
      answer: (status, headers) => {
        this.#status = status;
        return options.answer(status, headers, performance.now() - this.#sentAt);
      },
      onClientGone: () => this.#cut(new ClientDisconnected()),
      onEnd: (error) => this.#ended(error),
    });
  }

  start(): void {
    const { pool, path, headers, timeoutMs, maxBodyBytes, uploadIdleMs, expectsContinue } = this.#options;
    const { revoked, lost } = this.#options;
    // Meanwhile, while the request waited: the events are over.
    if (revoked.aborted) return this.#finish('cancelled', unauthorized(REVOKED));
    if (lost.aborted && !isTakenOver(lost)) return this.#finish('broken', reasonOf(lost));
    if (hasBody(this.#request.headers)) {
      this.#body = requestBody(this.#request, {
        max: maxBodyBytes,
        idleMs: uploadIdleMs,
        onStart: () => {
          if (expectsContinue) this.#response.writeContinue();
        },
      });
    }
    this.#timer = setTimeout(
      () =>
        this.#stop(
          'hung',
          gatewayTimeout(`the handler did not answer within ${timeoutMs / 1000} s`, 'handler_timeout'),
        ),
      timeoutMs,
    );
    revoked.addEventListener('abort', this.#onRevoked);
    lost.addEventListener('abort', this.#onLost);
    const onConnection = (connection: HandlerConnection): void => {
      this.#connection = connection;
    };
    pool.dispatch({ method: 'POST', path, headers, body: this.#body, onConnection }, this.#pump);
  }

  readonly #onRevoked = (): void => {
    const refusal = unauthorized(REVOKED);
    this.#cut(refusal);
    // A part of an answer must not look like all of it.
    if (this.#response.headersSent) this.#response.destroy();
    else this.#options.refuse(refusal);
  };

  readonly #onLost = (): void => {
    const { lost } = this.#options;
    if (!isTakenOver(lost)) this.#stop('broken', reasonOf(lost));
  };

  readonly #onStopping = (): void => {
    if (this.#cutBy !== undefined) this.#stop('cancelled', this.#cutBy);
  };

  /** The client gets nothing more; the handler may finish. */
  #cut(error: ApiError | ClientDisconnected): void {
    if (this.#isOver || this.#cutBy !== undefined) return;
    this.#cutBy = error;
    const { stopping } = this.#options;
    const isComplete = this.#body === null || this.#body.readableEnded;
    if (this.#startedAt === null || !isComplete || stopping.aborted) return this.#stop('cancelled', error);
    // Only these: all calls share the signal, and each listener makes the next one dearer.
    stopping.addEventListener('abort', this.#onStopping);
    this.#pump.discard();
    this.#connection?.endRequests();
  }

  #ended(error: Error | undefined): void {
    if (this.#cutBy !== undefined) {
      this.#connection?.close();
      return this.#finish('cancelled', this.#cutBy);
    }
    if (error === undefined) return this.#finish('good', undefined);
    const early = this.#body?.errored;
    if (early instanceof ClientDisconnected || early instanceof ApiError)
      return this.#finish('cancelled', early);
    this.#isInvalid = error instanceof errors.HeadersOverflowError || error instanceof errors.HTTPParserError;
    const refusal = badGateway(this.#reason(error), 'handler_failed');
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

  #stop(end: RequestEnd, error: ApiError | ClientDisconnected): void {
    this.#finish(end, error);
    this.#pump.abort(error);
  }

  #finish(end: RequestEnd, error: HandlerOutcome['error']): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#timer);
    const { revoked, lost, stopping } = this.#options;
    revoked.removeEventListener('abort', this.#onRevoked);
    lost.removeEventListener('abort', this.#onLost);
    stopping.removeEventListener('abort', this.#onStopping);
    this.#body?.destroy();
    // A part of an answer must not look like all of it.
    if (error !== undefined && this.#response.headersSent && !this.#response.writableEnded)
      this.#response.destroy();
    this.#resolve({
      end,
      isSent: this.#startedAt !== null,
      startedAt: this.#startedAt,
      durationMs: this.#startedAt === null ? 0 : performance.now() - this.#sentAt,
      status: this.#status,
      error,
      isInvalid: this.#isInvalid,
      isCut: this.#cutBy !== undefined,
    });
  }
}

const REVOKED = 'the credential was revoked';

/** Another gateway has leased the instance since; requests of this one still complete. */
const isTakenOver = ({ reason }: AbortSignal): boolean => reason instanceof ApiError && reason.status === 409;

const reasonOf = ({ reason }: AbortSignal): ApiError =>
  reason instanceof ApiError ? reason : badGateway('the instance ended');
