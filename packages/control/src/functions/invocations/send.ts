/** Sends an invocation to a gateway, and reads from the response how it has ended. */
import { Readable } from 'node:stream';
import {
  BOUNDS,
  FUNCTION_BROKEN_HEADER,
  FUNCTION_COLD_HEADER,
  FUNCTION_DURATION_HEADER,
  FUNCTION_QUEUE_HEADER,
  FUNCTION_STATUS_HEADER,
  FUNCTION_VERSION_HEADER,
  INVOCATION_ATTEMPT_HEADER,
  INVOCATION_ID_HEADER,
} from '@releap/contract';
import type { Agent, Dispatcher } from 'undici';
import { gatewayAgent } from '../versions/gateway-agent.ts';
import type { PayloadHeaders } from './payload-headers.ts';
import { isStorableResult } from './store.ts';
import type { InvocationOutcome } from './transitions.ts';

/** Of a handler's answer, in an error. */
const EXCERPT_CHARS = 500;
const CHUNK_BYTES = 64 * 1024;
/** Of timers, in milliseconds: 24 days. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export interface SendRequest {
  /** Base URL of a gateway. */
  gateway: string;
  /** Authorizes the call for the project of the function. */
  token: string;
  id: string;
  attempt: number;
  /** Name of the function. */
  name: string;
  contentType: string;
  /** Others that the handler gets. */
  headers: PayloadHeaders;
  body: Buffer;
  /** Of the function, in milliseconds. */
  timeoutMs: number;
  /** Longest time until the response has ended, in milliseconds. */
  deadlineMs: number;
  signal: AbortSignal;
  /** Called once the body is no longer held here. */
  onSent?: () => void;
}

/** What the gateway says of the handler. */
export interface Served {
  /** How long it had the call, in milliseconds; null when it did not get it, or nothing is known. This is charged. */
  durationMs: number | null;
  cold: boolean | null;
  /** Null when the gateway does not say it. */
  version: number | null;
}

/** The handler's part is over, or will never begin. */
export interface Ended extends Served {
  kind: 'ended';
  status: InvocationOutcome;
  error: string | null;
  /** JSON text. */
  result: string | null;
}

export type SendOutcome =
  | Ended
  /** Nothing is known of an answer of the handler, which may have run: another attempt follows. */
  | ({ kind: 'retry'; error: string } & Served)
  /** No gateway has received it. */
  | { kind: 'unsent'; error: string };

export type Send = (request: SendRequest) => Promise<SendOutcome>;

const UNKNOWN: Served = { durationMs: null, cold: null, version: null };

/** Statuses of the gateway that mean that this invocation will not run. */
const REFUSALS: Readonly<Record<number, InvocationOutcome>> = {
  400: 'failed',
  402: 'failed',
  404: 'failed',
  429: 'shed',
  504: 'timeout',
};
/** Statuses of a gateway that cannot look up functions now, or does not know the credential yet. */
const NOT_NOW: readonly number[] = [401, 503];
/** Errors of undici and of the system before a request was sent. */
const UNSENT_CODES: readonly string[] = [
  'ECONNREFUSED',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
  'ENOENT',
  'UND_ERR_CONNECT_TIMEOUT',
];

export function createSender(): { send: Send; close(): Promise<void> } {
  // Deadlines are those of the request; the number of requests is bounded by the worker.
  const agent = gatewayAgent();
  return { send: (request) => send(agent, request), close: () => agent.destroy() };
}

async function send(agent: Agent, request: SendRequest): Promise<SendOutcome> {
  const { gateway, token, id, attempt, name, contentType, headers, body, deadlineMs, signal, onSent } =
    request;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), Math.min(deadlineMs, TIMER_MAX_MS));
  const since = performance.now();
  try {
    const url = new URL(gateway);
    const response: Dispatcher.ResponseData = await agent.request({
      origin: url.origin,
      path: `${url.pathname.replace(/\/$/, '')}/fns/${encodeURIComponent(name)}/invoke`,
      method: 'POST',
      headers: {
        ...headers,
        authorization: `Bearer ${token}`,
        'content-type': contentType,
        'content-length': String(body.length),
        [INVOCATION_ID_HEADER]: id,
        [INVOCATION_ATTEMPT_HEADER]: String(attempt),
        // It waits as long as the function has instances: those before it are from the same queue.
        [FUNCTION_QUEUE_HEADER]: 'wait',
      },
      body: body.length <= CHUNK_BYTES ? body : Readable.from(chunks(body, onSent), { objectMode: false }),
      signal: AbortSignal.any([signal, late.signal]),
    });
    return await outcomeOf(response, request, since);
  } catch (error) {
    if (late.signal.aborted)
      return { kind: 'retry', error: `no answer within ${deadlineMs / 1000} s`, ...UNKNOWN };
    const { code, message } = error as NodeJS.ErrnoException;
    const shown = `the gateway cannot be reached: ${message || code || String(error)}`;
    return UNSENT_CODES.includes(code ?? '')
      ? { kind: 'unsent', error: shown }
      : { kind: 'retry', error: shown, ...UNKNOWN };
  } finally {
    clearTimeout(timer);
  }
}

/** The connection takes what it can: a body that waits for an instance is not copied. */
async function* chunks(body: Buffer, onSent: (() => void) | undefined): AsyncGenerator<Buffer> {
  for (let at = 0; at < body.length; at += CHUNK_BYTES) yield body.subarray(at, at + CHUNK_BYTES);
  onSent?.();
}

async function outcomeOf(
  { statusCode, headers, body }: Dispatcher.ResponseData,
  { id, timeoutMs }: SendRequest,
  since: number,
): Promise<SendOutcome> {
  const headAt = performance.now();
  const fnStatus = numberOf(headers[FUNCTION_STATUS_HEADER]);
  const saidMs = numberOf(headers[FUNCTION_DURATION_HEADER]);
  const untilHead = saidMs ?? headAt - since;
  const served = (durationMs: number | null): Served => ({
    durationMs,
    cold: headers[FUNCTION_COLD_HEADER] === undefined ? null : headers[FUNCTION_COLD_HEADER] === '1',
    version: numberOf(headers[FUNCTION_VERSION_HEADER]),
  });
  const handler = (status: InvocationOutcome, error: string | null, result: string | null): Ended => ({
    kind: 'ended',
    status,
    error,
    result,
    ...served(untilHead + performance.now() - headAt),
  });
  if (fnStatus === null) {
    const read = await readBounded(body, BOUNDS.invocationResultBytes).catch(() => undefined);
    // Of something in front of the gateway: the handler may run.
    if (headers[INVOCATION_ID_HEADER] !== id)
      return {
        kind: 'retry',
        error: `status ${statusCode} came from a proxy, not from a gateway`,
        ...UNKNOWN,
      };
    const error = refusalText(read?.text ?? null) ?? `the gateway answered with status ${statusCode}`;
    const status = REFUSALS[statusCode];
    if (status !== undefined) return { kind: 'ended', status, error, result: null, ...served(saidMs) };
    if (NOT_NOW.includes(statusCode) && saidMs === null) return { kind: 'unsent', error };
    // The handler has answered, if not with HTTP: another attempt would run it again for the same answer.
    const isAnswered = saidMs !== null && headers[FUNCTION_BROKEN_HEADER] === undefined;
    return isAnswered
      ? { kind: 'ended', status: 'failed', error, result: null, ...served(saidMs) }
      : { kind: 'retry', error, ...served(saidMs) };
  }
  const read = await readBounded(body, BOUNDS.invocationResultBytes).catch(() => undefined);
  if (read === undefined) {
    // The gateway cuts a response that takes longer.
    const durationMs = untilHead + performance.now() - headAt;
    return durationMs >= timeoutMs
      ? handler('timeout', 'the handler did not complete its response within timeout_s', null)
      : { kind: 'retry', error: 'the response of the handler was cut off', ...served(durationMs) };
  }
  if (fnStatus >= 400) return handler('failed', describe(fnStatus, read.text), null);
  const result = read.complete && read.text !== null && isStorableResult(read.text) ? read.text : null;
  return handler('succeeded', null, result);
}

function refusalText(text: string | null): string | undefined {
  try {
    const parsed = JSON.parse(text ?? '') as { error?: unknown } | null;
    return typeof parsed?.error === 'string' ? parsed.error : undefined;
  } catch {
    return undefined;
  }
}

function describe(status: number, text: string | null): string {
  const shown = (text ?? '').trim().slice(0, EXCERPT_CHARS);
  return `the handler answered with status ${status}${shown === '' ? '' : `: ${shown}`}`;
}

function numberOf(header: string | string[] | undefined): number | null {
  if (typeof header !== 'string' || header === '') return null;
  const number = Number(header);
  return Number.isFinite(number) && number >= 0 ? number : null;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * Reads a body to its end, and keeps at most `bytes` of it.
 * @returns `text` null when it is not UTF-8; a part of it when it is not `complete`
 * @throws when it is cut off
 */
async function readBounded(
  body: Dispatcher.ResponseData['body'],
  bytes: number,
): Promise<{ complete: boolean; text: string | null }> {
  const kept: Buffer[] = [];
  let size = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    if (size <= bytes) kept.push(chunk);
    size += chunk.length;
  }
  const complete = size <= bytes;
  try {
    const all = Buffer.concat(kept);
    return { complete, text: complete ? utf8.decode(all) : all.toString('utf8', 0, EXCERPT_CHARS) };
  } catch {
    return { complete, text: null };
  }
}
