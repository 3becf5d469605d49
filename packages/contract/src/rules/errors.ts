/**
 * Every error response of the service. A message says what was refused, with which value, and what is allowed; it
 * never carries a secret.
 */
import {
  type CodeOf,
  ERROR_CODES,
  type ErrorBody,
  type ErrorCode,
  type ErrorStatus,
  GENERAL_CODES,
} from '../wire/platform/errors.ts';
import type { ExceededQuota } from '../wire/tenancy/quota.ts';

export interface ApiErrorOptions {
  /** One of the status. Default: the general one. */
  code?: ErrorCode;
  /** Additional response headers, names in lower case. */
  headers?: Record<string, string>;
  /** Extra fields of the body beside `error`. */
  fields?: Record<string, unknown>;
  /** For the log only; never sent. */
  cause?: unknown;
}

/** An error for the client. Any other thrown value is a 500 whose message is only logged. */
export class ApiError extends Error {
  readonly status: ErrorStatus;
  readonly code: ErrorCode;
  readonly headers: Record<string, string>;
  /** Without the id of the request: `errorBody` adds it. */
  readonly body: Omit<ErrorBody, 'request_id'> & Record<string, unknown>;

  constructor(status: ErrorStatus, message: string, options: ApiErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'ApiError';
    this.status = status;
    this.code = options.code ?? GENERAL_CODES[status];
    this.headers = options.headers ?? {};
    this.body = {
      error: message,
      code: this.code,
      retryable: ERROR_CODES[this.code].retryable,
      ...options.fields,
    };
  }
}

/** The body of an error in a response to a request. */
export function errorBody(
  { body }: Pick<ApiError, 'body'>,
  requestId: string,
): ErrorBody & Record<string, unknown> {
  return { ...body, request_id: requestId };
}

/** `Retry-After` of a create that finds no capacity, in seconds. */
export const OVERLOAD_RETRY_AFTER_SECS = 2;

const refusalOf = <S extends ErrorStatus>(
  status: S,
  message: string,
  code: CodeOf<S> | undefined,
): ApiError => new ApiError(status, message, code === undefined ? {} : { code });

export function badRequest(message: string, code?: CodeOf<400>): ApiError {
  return refusalOf(400, message, code);
}

export function unauthorized(
  message = 'missing or invalid credentials: send Authorization: Bearer <API key>',
): ApiError {
  return new ApiError(401, message, { headers: { 'www-authenticate': 'Bearer' } });
}

export function outOfCredits(
  message = 'the organization that owns this project is out of credits',
): ApiError {
  return new ApiError(402, message);
}

export function forbidden(message: string, code?: CodeOf<403>): ApiError {
  return refusalOf(403, message, code);
}

export function notFound(message: string, code?: CodeOf<404>): ApiError {
  return refusalOf(404, message, code);
}

export function conflict(message: string, code?: CodeOf<409>): ApiError {
  return refusalOf(409, message, code);
}

/** How long a client waits before it asks again for what is being copied, in seconds. */
const REPLICATION_RETRY_AFTER_SECS = 2;

/** 409 of an image or snapshot that is not in the region yet. @param trouble why not, where that is known */
export function stillReplicating(
  what: string,
  region: string,
  trouble: string | null,
  code: CodeOf<409>,
): ApiError {
  const why = trouble === null ? '' : ` (${trouble}; it is tried again)`;
  return new ApiError(
    409,
    `${what} is still replicating into the region ${quote(region)}${why}: try again in a moment`,
    { code, headers: { 'retry-after': String(REPLICATION_RETRY_AFTER_SECS) } },
  );
}

/** 429 of a create, with the fields of `OverloadBody`. */
export function overloaded(
  message: string,
  retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS,
  code: CodeOf<429> = 'overloaded',
): ApiError {
  const seconds = Math.max(1, Math.ceil(retryAfterSecs));
  return new ApiError(429, message, {
    code,
    headers: { 'retry-after': String(seconds) },
    fields: { message, retry_after_secs: seconds },
  });
}

/** 429 of what a quota has no room for, with the fields of `QuotaRefusal`. */
export class QuotaExceeded extends ApiError {
  readonly quota: ExceededQuota;

  constructor(message: string, quota: ExceededQuota, retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS) {
    const code = 'quota_exceeded';
    const { headers, body } = overloaded(message, retryAfterSecs, code);
    const { owner, resource, limit, used } = quota;
    super(429, message, { code, headers, fields: { ...body, owner, resource, limit, used } });
    this.name = 'QuotaExceeded';
    this.quota = { owner, resource, limit, used };
  }
}

/** A version of a function has not been tried yet. Calls wait for that: it is not a lack of capacity. */
export class NotTriedYet extends ApiError {
  constructor(message: string) {
    super(429, message);
    this.name = 'NotTriedYet';
  }
}

/** For an unexpected failure. The cause is logged and never sent. */
export function internalError(cause?: unknown): ApiError {
  return new ApiError(500, 'internal error', { cause });
}

export function notImplemented(message: string, code?: CodeOf<501>): ApiError {
  return refusalOf(501, message, code);
}

export function badGateway(message: string, code?: CodeOf<502>): ApiError {
  return refusalOf(502, message, code);
}

export function unavailable(message: string, retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS): ApiError {
  return new ApiError(503, message, {
    headers: { 'retry-after': String(Math.max(1, Math.ceil(retryAfterSecs))) },
  });
}

export function gatewayTimeout(message: string, code?: CodeOf<504>): ApiError {
  return refusalOf(504, message, code);
}

/** The same 404 for an unknown and a malformed id, and another project's. */
export function sandboxNotFound(id: string): ApiError {
  return notFound(`sandbox ${quote(id)} not found`, 'sandbox_not_found');
}

export function jobNotFound(id: string): ApiError {
  return notFound(`job ${quote(id)} not found`, 'job_not_found');
}

export function imageNotFound(name: string): ApiError {
  return notFound(`image ${quote(name)} not found`, 'image_not_found');
}

/** The same 404 for an unknown name and one that no function can have, and for another project's. */
export function functionNotFound(name: string): ApiError {
  return notFound(`function ${quote(name)} not found`, 'function_not_found');
}

const QUOTED_MAX = 80;

/** Quotes a value for a message: as JSON, so that control characters cannot forge lines, and truncated. */
export function quote(value: unknown): string {
  let text: string | undefined;
  if (typeof value === 'number' || typeof value === 'bigint') text = String(value);
  else if (typeof value === 'string')
    // Truncate first: quoting a megabyte would waste CPU time for an attacker.
    text = JSON.stringify(value.length > QUOTED_MAX ? value.slice(0, QUOTED_MAX) : value);
  else if (Array.isArray(value)) text = `an array of ${value.length} item${value.length === 1 ? '' : 's'}`;
  else text = value === undefined ? 'nothing' : safeJson(value);
  return text.length > QUOTED_MAX + 2 || (typeof value === 'string' && value.length > QUOTED_MAX)
    ? `${text.slice(0, QUOTED_MAX)}…${typeof value === 'string' ? '"' : ''}`
    : text;
}

function safeJson(value: unknown): string {
  if (value !== null && typeof value === 'object') {
    const keys = Object.keys(value);
    const shown = keys.slice(0, 8).map((key) => quote(key));
    return keys.length === 0
      ? 'an empty object'
      : `an object with ${shown.join(', ')}${keys.length > 8 ? ', …' : ''}`;
  }
  return JSON.stringify(value) ?? typeof value;
}
