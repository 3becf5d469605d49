/** HTTP with a deadline for everything, and refusals turned into sentences. */
import { Agent, type Dispatcher, request } from 'undici';
import { CliError, interruptedError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';
import { pause } from './retry.ts';

export interface HttpOptions {
  /** Without a final slash; paths are put behind it. */
  baseUrl: string;
  /** An API key or another token. Nothing is sent without one. */
  apiKey?: string;
  /** What to do about a token that is not taken, put behind what the service says. */
  hint401?: string;
  signal: AbortSignal;
}

export interface Call {
  method?: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  query?: Readonly<Record<string, string | number | boolean | undefined>>;
  json?: unknown;
  body?: Buffer | NodeJS.ReadableStream;
  headers?: Record<string, string>;
  /** Until the headers of the answer are there, in milliseconds. */
  timeoutMs?: number;
  /** Longest silence inside the answer, in milliseconds; 0 for as long as it takes. */
  idleMs?: number;
}

/** Beyond that somebody is wrong about what a rate is. */
const READ_ATTEMPTS = 5;
const LONGEST_PAUSE_SECS = 30;
const CONNECT_MS = 10_000;
const DEFAULT_TIMEOUT_MS = 30_000;
const JSON_MAX_BYTES = 32 * 1024 * 1024;
const ERROR_MAX_BYTES = 64 * 1024;

export class Http implements AsyncDisposable {
  readonly #options: HttpOptions;
  readonly #agent = new Agent({ connect: { timeout: CONNECT_MS }, connections: 8 });

  constructor(options: HttpOptions) {
    this.#options = options;
  }

  get signal(): AbortSignal {
    return this.#options.signal;
  }

  get apiKey(): string {
    return this.#options.apiKey ?? '';
  }

  get agent(): Agent {
    return this.#agent;
  }

  /** The body of a 2xx answer as JSON; undefined for an empty one. Everything else throws. */
  async json<T>(path: string, call: Call = {}): Promise<T> {
    const answer = await this.stream(path, call);
    const text = await this.#text(answer.body, JSON_MAX_BYTES, 'the answer');
    if (text === '') return undefined as T;
    try {
      return JSON.parse(text) as T;
    } catch (error) {
      throw new CliError(`${this.#options.baseUrl} did not answer with JSON: is it a Releap service?`, {
        cause: error,
      });
    }
  }

  /**
   * The body of a 2xx answer as it comes. Everything else throws; only a read that is refused because there were too
   * many (429) is repeated, when the service says so, for a while.
   */
  async stream(path: string, call: Call = {}): Promise<Dispatcher.ResponseData> {
    const url = this.#url(path, call.query);
    for (let attempt = 1; ; attempt++) {
      const answer = await this.#ask(url, call);
      if (answer.statusCode >= 200 && answer.statusCode < 300) return answer;
      const text = await this.#text(answer.body, ERROR_MAX_BYTES, 'the refusal').catch(() => '');
      const error = refusal(answer, text, url, this.#options.hint401);
      const read = (call.method ?? 'GET') === 'GET';
      if (error.status !== 429 || !read || attempt >= READ_ATTEMPTS) throw error;
      await pause(Math.min(error.retryAfterSecs ?? 1, LONGEST_PAUSE_SECS) * 1000, this.#options.signal);
    }
  }

  async #ask(url: URL, call: Call): Promise<Dispatcher.ResponseData> {
    try {
      return await request(url, {
        method: call.method ?? 'GET',
        dispatcher: this.#agent,
        signal: this.#options.signal,
        headersTimeout: call.timeoutMs ?? DEFAULT_TIMEOUT_MS,
        bodyTimeout: call.idleMs ?? DEFAULT_TIMEOUT_MS,
        headers: {
          ...(this.#options.apiKey === undefined ? {} : { authorization: `Bearer ${this.#options.apiKey}` }),
          accept: '*/*',
          ...(call.json === undefined ? {} : { 'content-type': 'application/json' }),
          ...call.headers,
        },
        body:
          call.json === undefined ? ((call.body as Buffer | undefined) ?? null) : JSON.stringify(call.json),
      });
    } catch (error) {
      throw networkError(error, url, this.#options.signal);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.destroy();
  }

  #url(path: string, query: Call['query']): URL {
    const url = new URL(/^https?:/.test(path) ? path : `${this.#options.baseUrl}${path}`);
    for (const [key, value] of Object.entries(query ?? {}))
      if (value !== undefined) url.searchParams.set(key, String(value));
    return url;
  }

  async #text(body: Dispatcher.ResponseData['body'], max: number, what: string): Promise<string> {
    const chunks: Buffer[] = [];
    let size = 0;
    try {
      for await (const chunk of body as AsyncIterable<Buffer>) {
        size += chunk.length;
        if (size > max) throw new CliError(`${what} has more than ${max} bytes`);
        chunks.push(chunk);
      }
    } catch (error) {
      if (error instanceof CliError) throw error;
      throw networkError(error, new URL(this.#options.baseUrl), this.#options.signal);
    }
    return Buffer.concat(chunks).toString('utf8');
  }
}

function refusal(
  answer: Dispatcher.ResponseData,
  text: string,
  url: URL,
  hint401: string | undefined,
): CliError {
  const status = answer.statusCode;
  const hint = status === 401 && hint401 !== undefined ? `: ${hint401}` : '';
  const retryAfter = Number(answer.headers['retry-after']);
  return new CliError(
    `${serverSentence(text) ?? `${url.origin} answered ${status} to ${url.pathname}`}${hint}`,
    {
      status,
      exitCode: status === 401 ? EXIT.unavailable : status === 404 ? EXIT.notFound : EXIT.failed,
      ...(Number.isFinite(retryAfter) && retryAfter > 0 ? { retryAfterSecs: retryAfter } : {}),
    },
  );
}

function serverSentence(text: string): string | undefined {
  try {
    const body = JSON.parse(text) as { error?: unknown; message?: unknown };
    if (typeof body.error === 'string' && body.error !== '') return printable(body.error);
  } catch {
    // Not ours: some proxy's page. The status is all that can be told.
  }
  return undefined;
}

const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens there. Is the service running?',
  ENOTFOUND: 'there is no such host',
  EAI_AGAIN: 'the host name cannot be looked up at the moment',
  ECONNRESET: 'the connection was cut',
  UND_ERR_SOCKET: 'the connection was cut',
  UND_ERR_CONNECT_TIMEOUT: `no connection within ${CONNECT_MS / 1000} s`,
  UND_ERR_HEADERS_TIMEOUT: 'no answer in time',
  UND_ERR_BODY_TIMEOUT: 'the answer stopped in the middle',
};

/** Turns what undici or ws throws into a sentence; a Ctrl-C in the middle of a call is one. */
export function networkError(error: unknown, url: URL, signal: AbortSignal): CliError {
  if (signal.aborted) return interruptedError();
  const nested = error instanceof AggregateError ? error.errors[0] : error;
  const { code, message } = (nested ?? error) as NodeJS.ErrnoException;
  const reason = REASONS[code ?? ''] ?? message ?? String(error);
  return new CliError(`cannot reach ${url.origin}: ${reason}`, { exitCode: EXIT.unavailable, cause: error });
}
