/** Streams the answer of an upstream server to a client: the one handler of answers of all proxies. For undici's `dispatch`. */
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http';

/** The client has closed its connection. */
export class ClientDisconnected extends Error {
  constructor() {
    super('the client closed the connection');
    this.name = 'ClientDisconnected';
  }
}

/** Header fields by name in lower case, each with all of its values, in their order. */
export type HeaderLists = NodeJS.Dict<string[]>;

/** undici gives a string for a field that occurs once, and an array from the second on. */
export function headerLists(headers: NodeJS.Dict<string | string[]>): HeaderLists {
  const lists: HeaderLists = {};
  for (const [name, value] of Object.entries(headers))
    if (value !== undefined) lists[name] = typeof value === 'string' ? [value] : value;
  return lists;
}

export interface PumpOptions {
  /** Status and headers for the client. What it throws ends the request. */
  answer(status: number, headers: HeaderLists): readonly [number, OutgoingHttpHeaders];
  /** A connection was found: the request is sent from now on. */
  onSent?(): void;
  /** The client has disconnected. By default the request is aborted; `discard` lets it end. */
  onClientGone?(): void;
  /** Longest time without the client reading, in milliseconds. */
  stallMs?: number;
  /** Called once. The answer was passed on or discarded completely, or this error has ended it. */
  onEnd(error?: Error): void;
}

/** undici's `DispatchController`, as far as it is used. */
export interface UpstreamController {
  abort(reason: Error): void;
  pause(): void;
  resume(): void;
}

/** Passes one answer on at the pace of its reader. An incomplete one is left to `onEnd`: it must not look complete. */
export class ResponsePump {
  readonly #response: ServerResponse;
  readonly #options: PumpOptions;
  #controller: UpstreamController | undefined;
  #stalled: NodeJS.Timeout | undefined;
  #isDiscarding = false;
  #isOver = false;
  /** What the request is aborted with as soon as it has a connection. */
  #aborted: Error | undefined;

  constructor(response: ServerResponse, options: PumpOptions) {
    this.#response = response;
    this.#options = options;
    response.on('error', ignore).on('drain', this.#onDrain).on('close', this.#onClose);
  }

  /** Ends the request, also one that has no connection yet. */
  abort(error: Error): void {
    if (this.#isOver) return;
    this.#aborted = error;
    this.#end(error);
    this.#controller?.abort(error);
  }

  /** Nothing more is passed on; the rest of the answer is read, and the request ends with it. */
  discard(): void {
    this.#isDiscarding = true;
    clearTimeout(this.#stalled);
    this.#controller?.resume();
  }

  onRequestStart(controller: UpstreamController): void {
    this.#controller = controller;
    if (this.#aborted !== undefined) return controller.abort(this.#aborted);
    this.#options.onSent?.();
    if (this.#response.destroyed) this.#onClose();
  }

  onResponseStart(
    _controller: UpstreamController,
    status: number,
    headers: NodeJS.Dict<string | string[]>,
  ): void {
    if (status < 200 || this.#isOver || this.#isDiscarding) return;
    this.#response.writeHead(...this.#options.answer(status, headerLists(headers)));
    // In one write with the first chunk of the body, if that has arrived.
    setImmediate(() => {
      if (!this.#response.writableEnded && !this.#response.destroyed) this.#response.flushHeaders();
    });
  }

  onResponseData(controller: UpstreamController, chunk: Buffer): void {
    if (this.#isOver || this.#isDiscarding || this.#response.write(chunk)) return;
    controller.pause();
    const { stallMs } = this.#options;
    if (stallMs !== undefined) this.#stalled = setTimeout(() => this.#response.destroy(), stallMs);
  }

  onResponseEnd(): void {
    if (this.#isOver) return;
    if (!this.#isDiscarding) this.#response.end();
    this.#end();
  }

  onResponseError(_controller: UpstreamController, error: Error): void {
    this.#end(error);
  }

  readonly #onDrain = (): void => {
    clearTimeout(this.#stalled);
    this.#controller?.resume();
  };

  readonly #onClose = (): void => {
    if (this.#response.writableFinished || this.#isDiscarding || this.#isOver) return;
    if (this.#options.onClientGone === undefined) this.abort(new ClientDisconnected());
    else this.#options.onClientGone();
  };

  #end(error?: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#stalled);
    this.#response.off('drain', this.#onDrain).off('close', this.#onClose);
    this.#options.onEnd(error);
  }
}

const ignore = (): void => undefined;
