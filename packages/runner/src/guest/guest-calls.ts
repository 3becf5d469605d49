/** Requests to a guest that are answered once, each with a deadline. */
import { createReadStream } from 'node:fs';
import type { GuestConnection } from './connection.ts';
import { GuestError } from './guest-error.ts';
import type { GuestStream } from './guest-stream.ts';
import type { CallOptions } from './requests.ts';

const DEADLINE_MS = 30_000;

export class GuestCalls {
  readonly #connection: GuestConnection;

  constructor(connection: GuestConnection) {
    this.#connection = connection;
  }

  /** @param options.input path of a file that is the input of the request. The guest may answer before it has read all of it. */
  async call(
    method: string,
    params: Record<string, unknown>,
    { input, ...options }: CallOptions & { input?: string | undefined } = {},
  ): Promise<Record<string, unknown>> {
    const stream = this.#connection.request(method, params);
    stream.stdout.resume();
    stream.stderr.resume();
    const file = input === undefined ? undefined : createReadStream(input);
    file?.once('error', (error) =>
      stream.cancel(new GuestError('aborted', `${input} cannot be read`, { cause: error })),
    );
    file?.pipe(stream.stdin);
    try {
      return await this.#settle(stream, method, options);
    } finally {
      file?.destroy();
    }
  }

  async #settle(stream: GuestStream, method: string, options: CallOptions): Promise<Record<string, unknown>> {
    const deadlineMs = options.deadlineMs ?? DEADLINE_MS;
    const timer = setTimeout(() => {
      stream.cancel(new GuestError('timeout', `the guest did not answer ${method} within ${deadlineMs} ms`));
    }, deadlineMs);
    const release = cancelOnAbort(stream, method, options.signal);
    try {
      return await stream.result;
    } finally {
      clearTimeout(timer);
      release();
    }
  }
}

/** @returns how to stop listening */
export function cancelOnAbort(
  stream: GuestStream,
  method: string,
  signal: AbortSignal | undefined,
): () => void {
  if (signal === undefined) return () => undefined;
  const abort = (): void =>
    stream.cancel(new GuestError('aborted', `${method} was cancelled`, { cause: signal.reason }));
  if (signal.aborted) abort();
  else signal.addEventListener('abort', abort, { once: true });
  return () => signal.removeEventListener('abort', abort);
}
