/**
 * Every error response of the service. A message says what was refused, with which value, and what is allowed; it
 * never carries a secret.
 */
import type { ErrorBody, ErrorStatus } from '../wire/errors.ts';
import type { ExceededQuota } from '../wire/quota.ts';
import { quote } from './quote.ts';

export interface ApiErrorOptions {
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
  readonly headers: Record<string, string>;
  readonly body: ErrorBody & Record<string, unknown>;

  constructor(status: ErrorStatus, message: string, options: ApiErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'ApiError';
    this.status = status;
    this.headers = options.headers ?? {};
    this.body = { error: message, ...options.fields };
  }
}

/** `Retry-After` of a create that finds no capacity, in seconds. */
export const OVERLOAD_RETRY_AFTER_SECS = 2;

export function badRequest(message: string): ApiError {
  return new ApiError(400, message);
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

export function forbidden(message: string): ApiError {
  return new ApiError(403, message);
}

export function notFound(message: string): ApiError {
  return new ApiError(404, message);
}

export function conflict(message: string): ApiError {
  return new ApiError(409, message);
}

/** 429 of a create, with the fields of `OverloadBody`. */
export function overloaded(message: string, retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS): ApiError {
  const seconds = Math.max(1, Math.ceil(retryAfterSecs));
  return new ApiError(429, message, {
    headers: { 'retry-after': String(seconds) },
    fields: { message, retry_after_secs: seconds },
  });
}

/** 429 of what a quota has no room for, with the fields of `QuotaRefusal`. */
export class QuotaExceeded extends ApiError {
  readonly quota: ExceededQuota;

  constructor(message: string, quota: ExceededQuota, retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS) {
    const { headers, body } = overloaded(message, retryAfterSecs);
    const { owner, resource, limit, used } = quota;
    const { error: _, ...fields } = body;
    super(429, message, { headers, fields: { ...fields, owner, resource, limit, used } });
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

export function notImplemented(message: string): ApiError {
  return new ApiError(501, message);
}

export function badGateway(message: string): ApiError {
  return new ApiError(502, message);
}

export function unavailable(message: string, retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS): ApiError {
  return new ApiError(503, message, {
    headers: { 'retry-after': String(Math.max(1, Math.ceil(retryAfterSecs))) },
  });
}

export function gatewayTimeout(message: string): ApiError {
  return new ApiError(504, message);
}

/** The same 404 for an unknown and a malformed id, and another project's. */
export function sandboxNotFound(id: string): ApiError {
  return notFound(`sandbox ${quote(id)} not found`);
}

export function jobNotFound(id: string): ApiError {
  return notFound(`job ${quote(id)} not found`);
}

export function imageNotFound(name: string): ApiError {
  return notFound(`image ${quote(name)} not found`);
}

/** The same 404 for an unknown name and one that no function can have, and for another project's. */
export function functionNotFound(name: string): ApiError {
  return notFound(`function ${quote(name)} not found`);
}
