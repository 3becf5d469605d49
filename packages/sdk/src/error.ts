/** The error class of all failures, and what becomes one. */
import type { ErrorCode } from '@releap/contract/wire';

/**
 * Of a call: `refused`, the service answered with an error status; `unreachable`, no connection, or one that broke;
 * `timeout`, its deadline has passed; `aborted`, its signal was aborted; `malformed`, the response violates the contract.
 * Of other functions: `invalid`, an argument is not valid or names several things; `missing`, nothing has that name;
 * `failed`, what was asked for has failed, for the reason in the message; `pending`, it was waited for in vain, and
 * continues.
 */
export type FailureKind =
  | 'refused'
  | 'unreachable'
  | 'timeout'
  | 'aborted'
  | 'malformed'
  | 'invalid'
  | 'missing'
  | 'failed'
  | 'pending';

export interface FailureDetails {
  /** HTTP status; of a refused call, and 404 of a resource that is missing. */
  status?: number;
  /** What kind of refusal it is, to switch on; a newer service may have codes that this version does not know. */
  code?: string;
  /** Whether the same request can succeed later; absent when the answer does not say it. */
  retryable?: boolean;
  /** Seconds to wait before a retry, if the service sends them. */
  retryAfterSecs?: number;
  /** The request's id in the log of the service. */
  requestId?: string;
  /** URL of the request. */
  url?: URL;
  /** What is missing, as `sandbox`, or what the service does not have, as `stdin`. */
  resource?: string;
  cause?: unknown;
}

export class ReleapError extends Error {
  readonly kind: FailureKind;
  readonly status: number | undefined;
  readonly code: ErrorCode | (string & {}) | undefined;
  readonly retryable: boolean | undefined;
  readonly retryAfterSecs: number | undefined;
  readonly requestId: string | undefined;
  readonly url: URL | undefined;
  readonly resource: string | undefined;

  constructor(kind: FailureKind, message: string, details: FailureDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = 'ReleapError';
    this.kind = kind;
    this.status = details.status;
    this.code = details.code;
    this.retryable = details.retryable;
    this.retryAfterSecs = details.retryAfterSecs;
    this.requestId = details.requestId;
    this.url = details.url;
    this.resource = details.resource;
  }
}

/**
 * Whether the service answered so, or what was looked for is missing (404).
 * @param code the kind of refusal. A service of an earlier version sends none: then the status decides
 */
export function hasStatus(error: unknown, status: number, code?: ErrorCode): error is ReleapError {
  if (!(error instanceof ReleapError) || error.status !== status) return false;
  return code === undefined || error.code === undefined || error.code === code;
}

/** Maps what `fetch` or a WebSocket throws. If the signal is aborted, the call was aborted, whatever failed first. */
export function asFailure(error: unknown, signal: AbortSignal | undefined, url?: URL): ReleapError {
  if (signal?.aborted) return aborted(signal);
  if (error instanceof ReleapError) return error;
  const { code = '', message = String(error) } = deepest(error);
  const where = url === undefined ? 'the service' : url.origin;
  return new ReleapError('unreachable', `cannot reach ${where}: ${REASONS[code] ?? message}`, {
    cause: error,
    ...(url === undefined ? {} : { url }),
  });
}

export function aborted(signal: AbortSignal | undefined): ReleapError {
  return new ReleapError('aborted', 'the call was aborted', { cause: signal?.reason });
}

/** For the codes of Node's errors. */
const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens there. Is the service running?',
  ENOTFOUND: 'there is no such host',
  EAI_AGAIN: 'the host name cannot be looked up at the moment',
  ECONNRESET: 'the connection was cut',
  UND_ERR_SOCKET: 'the connection was cut',
  UND_ERR_CONNECT_TIMEOUT: 'no connection in time',
  UND_ERR_HEADERS_TIMEOUT: 'no answer in time',
  UND_ERR_BODY_TIMEOUT: 'the answer stopped in the middle',
};

/** `fetch failed` is caused by the error that says why, which may be several, one an address. */
function deepest(error: unknown): { code?: string; message?: string } {
  const nested = error instanceof AggregateError ? (error.errors[0] as unknown) : undefined;
  const below = nested ?? (error instanceof Error ? error.cause : undefined);
  return below instanceof Error ? deepest(below) : ((error as Error | null | undefined) ?? {});
}
