/** Passes a request to a gateway and streams the response back, each with the back-pressure of its reader. */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { badGateway, hasBody, keepEndToEnd, unavailable, type ApiError } from '@releap/contract';
import type { Dispatcher } from 'undici';

/** `expect` is answered here, `host` is that of the gateway. */
const isSetAnew = (name: string): boolean => name === 'expect' || name === 'host';

export interface PassThroughOptions {
  dispatcher: Dispatcher;
  /** Of the gateway. */
  origin: string;
  path: string;
  /** Over those of the client. */
  headers: Record<string, string>;
  /** Before the response begins: from now on it is not the caller's. */
  onBegin: () => void;
}

/**
 * Resolves when the response has ended, or the client is gone.
 * @throws ApiError 502 or 503, before the response has begun
 */
export function passThrough(
  request: IncomingMessage,
  response: ServerResponse,
  { dispatcher, origin, path, headers, onBegin }: PassThroughOptions,
): Promise<void> {
  return new Promise((resolve, reject) => {
    dispatcher.dispatch(
      {
        origin,
        path,
        method: request.method as Dispatcher.HttpMethod,
        headers: { ...keepEndToEnd(request.headers, isSetAnew), ...headers },
        body: hasBody(request.headers) ? request : null,
      },
      new Passing(response, onBegin, resolve, reject),
    );
  });
}

class Passing implements Dispatcher.DispatchHandler {
  readonly #response: ServerResponse;
  readonly #onBegin: () => void;
  readonly #resolve: () => void;
  readonly #reject: (error: ApiError) => void;
  #isSent = false;
  #controller: Dispatcher.DispatchController | undefined;

  constructor(
    response: ServerResponse,
    onBegin: () => void,
    resolve: () => void,
    reject: (error: ApiError) => void,
  ) {
    this.#response = response;
    this.#onBegin = onBegin;
    this.#resolve = resolve;
    this.#reject = reject;
    response.on('error', () => undefined);
    response.on('drain', () => this.#controller?.resume());
    response.once('close', () => {
      if (response.writableFinished) return;
      this.#controller?.abort(new Error('the client disconnected'));
      this.#end();
    });
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#isSent = true;
    this.#controller = controller;
    if (this.#response.destroyed) controller.abort(new Error('the client disconnected'));
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: IncomingHttpHeaders,
  ): void {
    if (status < 200) return;
    this.#onBegin();
    this.#response.writeHead(status, keepEndToEnd(headers, isSetAnew));
    // In one write with the first chunk of the body, if that has arrived.
    setImmediate(() => {
      if (!this.#response.writableEnded && !this.#response.destroyed) this.#response.flushHeaders();
    });
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#response.write(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    this.#response.end();
    this.#resolve();
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    const response = this.#response;
    if (response.headersSent) response.destroy();
    if (response.destroyed) return this.#end();
    const refusal = this.#isSent
      ? badGateway('the gateway closed the connection before it answered; the function may have run')
      : unavailable('no gateway answers; try again');
    refusal.cause = error;
    this.#reject(refusal);
  }

  /** Nothing can be sent to the client any more. */
  #end(): void {
    if (!this.#response.headersSent) this.#onBegin();
    this.#resolve();
  }
}
