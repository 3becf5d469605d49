/** A client generated from a table of operations: methods, types and paths come from the contract. */
import { IDEMPOTENCY_HEADER, type Operation } from '@releap/contract/wire';
import { idleTimeout, pause } from './deadline.ts';
import { asFailure, ReleapError } from './error.ts';
import { RawAnswer } from './raw-answer.ts';
import { readText, refusal } from './response.ts';
import type { CallOptions, Client, Operations, RawBody, RetryPolicy } from './types.ts';

export interface ClientOptions {
  /** Base URL of the operations' paths. */
  baseUrl: string;
  /** Sent as a bearer token; a function is called before each request. */
  credential?: string | (() => string | Promise<string>);
  /** Default: the global `fetch`. */
  fetch?: (url: URL, init: RequestInit) => Promise<Response>;
  /** Default of calls. */
  timeoutMs?: number;
  idleMs?: number;
  signal?: AbortSignal;
  /** For reads (GET); other calls are retried only if they have their own. */
  retryReads?: RetryPolicy;
  /** Maps a `ReleapError` to the thrown error. */
  mapError?: (error: ReleapError) => Error;
}

const TIMEOUT_MS = 30_000;
const PAUSE_SECS = 2;
const LONGEST_PAUSE_SECS = 30;
const RETRIED_STATUSES: readonly number[] = [429, 503];

/** @throws ReleapError from every method, or the result of `mapError` */
export function client<const T extends Operations>(operations: T, options: ClientOptions): Client<T> {
  const methods = Object.entries(operations)
    .filter(([, operation]) => operation.success.status !== 101)
    .map(([id, operation]) => [
      id,
      (input: AnyInput = {}, call: CallOptions = {}) => perform(operation, input, call, options),
    ]);
  return Object.fromEntries(methods) as Client<T>;
}

interface AnyInput {
  params?: Readonly<Record<string, string>>;
  query?: Readonly<Record<string, string | number | boolean | undefined>>;
  body?: unknown;
}

async function perform(
  operation: Operation,
  input: AnyInput,
  call: CallOptions,
  options: ClientOptions,
): Promise<unknown> {
  const map = options.mapError ?? ((error: ReleapError) => error);
  const retry = call.retry ?? (operation.method === 'GET' ? options.retryReads : undefined);
  const signal = anySignal(call.signal, options.signal);
  const headers: Record<string, string> = { ...call.headers };
  if (operation.idempotent === true && (call.idempotencyKey !== undefined || retry !== undefined))
    headers[IDEMPOTENCY_HEADER] = call.idempotencyKey ?? randomKey();
  for (let attempt = 1; ; attempt++) {
    try {
      return await once(operation, input, { ...call, headers }, options, signal, map);
    } catch (error) {
      const failure = asFailure(error, signal);
      if (!isRetried(failure, retry, attempt)) throw map(failure);
      const shown = map(failure);
      retry?.onRefusal?.(shown);
      const secs = Math.min(
        failure.retryAfterSecs ?? PAUSE_SECS,
        retry?.longestPauseSecs ?? LONGEST_PAUSE_SECS,
      );
      await pause(secs * 1000, signal).catch((stopped: unknown) => {
        throw map(asFailure(stopped, signal));
      });
    }
  }
}

function isRetried(error: ReleapError, retry: RetryPolicy | undefined, attempt: number): boolean {
  if (retry === undefined || attempt >= retry.attempts || error.status === undefined) return false;
  // Such as a limit that waiting does not raise.
  if (error.retryable === false) return false;
  return (retry.statuses ?? RETRIED_STATUSES).includes(error.status);
}

async function once(
  operation: Operation,
  input: AnyInput,
  call: CallOptions,
  options: ClientOptions,
  signal: AbortSignal | undefined,
  map: (error: ReleapError) => Error,
): Promise<unknown> {
  const url = urlOf(options.baseUrl, operation.path, input);
  const late = new AbortController();
  const timeoutMs = call.timeoutMs ?? options.timeoutMs ?? TIMEOUT_MS;
  const timer = setTimeout(() => {
    const message = `cannot reach ${url.origin}: no answer within ${timeoutMs / 1000} s`;
    late.abort(new ReleapError('timeout', message, { url }));
  }, timeoutMs);
  try {
    const init = await requestOf(operation, input, call, options);
    const ended = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
    const send = options.fetch ?? fetch;
    const response = await send(url, { ...init, signal: ended, redirect: 'manual' });
    if (!response.ok) throw await refusal(response, url);
    const { contentType, schema } = operation.success.response;
    if (contentType !== undefined)
      return new RawAnswer(response, {
        url,
        idleMs: call.idleMs ?? options.idleMs ?? TIMEOUT_MS,
        failed: (error) => map(asFailure(error, signal, url)),
      });
    const text = await idleTimeout(readText(response), timeoutMs, url);
    if (schema === undefined) return undefined;
    return parse(text, url);
  } catch (error) {
    throw asFailure(late.signal.aborted ? late.signal.reason : error, signal, url);
  } finally {
    clearTimeout(timer);
  }
}

async function requestOf(
  operation: Operation,
  input: AnyInput,
  call: CallOptions,
  { credential }: ClientOptions,
): Promise<RequestInit & { duplex?: 'half' }> {
  const token = typeof credential === 'function' ? await credential() : credential;
  const headers: Record<string, string> = {
    accept: '*/*',
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
  };
  const { method } = operation;
  // Operations that take any body do not describe it.
  if (operation.consumes === undefined && (operation.body === undefined || input.body === undefined))
    return { method, headers: { ...headers, ...call.headers } };
  const { type, body } = encode(operation, input.body);
  if (type !== undefined) headers['content-type'] = type;
  return {
    method,
    headers: { ...headers, ...call.headers },
    body,
    ...(body instanceof ReadableStream ? { duplex: 'half' } : {}),
  };
}

const JSON_TYPE = 'application/json';

function encode(
  { consumes = [JSON_TYPE] }: Operation,
  body: unknown,
): { type?: string; body: RawBody | FormData } {
  // Its content type has a boundary, which fetch adds.
  if (body instanceof FormData) return { body };
  if (consumes.includes(JSON_TYPE) && !(body instanceof ReadableStream))
    return { type: JSON_TYPE, body: JSON.stringify(body) };
  // Of an operation that takes any, the call names it.
  const type = consumes.find((one) => one !== JSON_TYPE && !one.includes('*'));
  return { ...(type === undefined ? {} : { type }), body: body as RawBody };
}

function urlOf(baseUrl: string, path: string, { params = {}, query = {} }: AnyInput): URL {
  const filled = path.replaceAll(/:([a-z_]+)/g, (_, name: string) => {
    const value = params[name];
    if (value === undefined) throw new TypeError(`params.${name} is required`);
    return encodeURIComponent(value);
  });
  const url = new URL(`${baseUrl.replace(/\/+$/, '')}${filled}`);
  for (const [name, value] of Object.entries(query))
    if (value !== undefined) url.searchParams.set(name, String(value));
  return url;
}

function parse(text: string, url: URL): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new ReleapError('malformed', `${url.origin} did not answer with JSON: is it a Releap service?`, {
      url,
      cause,
    });
  }
}

function anySignal(...signals: (AbortSignal | undefined)[]): AbortSignal | undefined {
  const given = signals.filter((signal) => signal !== undefined);
  return given.length > 1 ? AbortSignal.any(given) : given[0];
}

/** A random UUID (version 4). `crypto.randomUUID` exists only on https pages. */
function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
