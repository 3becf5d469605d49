/**
 * Every refusal the service can give. Wire form: `{ "error": "<sentence>" }` with the status of the table in
 * docs/api.md. A message says what was wrong, with which value, and what is allowed; it never carries a secret.
 */
import { Type, type Static } from 'typebox';

export const ErrorBody = Type.Object(
  { error: Type.String({ description: 'What was wrong, with which value, and what is allowed.' }) },
  { description: 'The form of every error.' },
);
export type ErrorBody = Static<typeof ErrorBody>;

export const OverloadBody = Type.Object(
  {
    error: Type.String(),
    message: Type.String({ description: 'The same sentence as `error`.' }),
    retry_after_secs: Type.Integer({ description: 'Seconds to wait; also in the `Retry-After` header.' }),
  },
  { description: 'Refusal of a create while the service has no room for it. Nothing was created.' },
);
export type OverloadBody = Static<typeof OverloadBody>;

/** What each status means here; the OpenAPI document and docs/api.md take their words from it. */
export const STATUS_MEANINGS = {
  400: 'The request is not valid: malformed body, bad value, unknown region, bad cursor, over a cap.',
  401: 'Credentials are missing or not valid.',
  402: 'The owning organization has no credits left.',
  403: 'The credentials are valid and do not permit this.',
  404: 'There is no such thing, or it belongs to another project.',
  409: 'The current state does not allow this: wrong lifecycle state, duplicate name, still in use.',
  429: 'No room right now; wait as long as `Retry-After` says.',
  500: 'Something broke inside the service.',
  501: 'This operation is not supported here.',
  502: 'The machine that should answer did not.',
  503: 'A part of the service is away for the moment; nothing was created, try again.',
  504: 'The answer took longer than its deadline.',
} as const;
export type ErrorStatus = keyof typeof STATUS_MEANINGS;

export interface ApiErrorOptions {
  /** Extra response headers, names in lower case. */
  headers?: Record<string, string>;
  /** Extra fields of the body beside `error`. */
  fields?: Record<string, unknown>;
  /** For the log only; never sent. */
  cause?: unknown;
}

/** A refusal that is meant for the caller. Anything else that is thrown is a 500 and its text stays inside. */
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

/** Seconds a caller is asked to wait when a create finds no room (spec, section Errors). */
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

/** 429 of a create: carries the sentence twice and the time to wait, as `OverloadBody` says. */
export function overloaded(message: string, retryAfterSecs = OVERLOAD_RETRY_AFTER_SECS): ApiError {
  const seconds = Math.max(1, Math.ceil(retryAfterSecs));
  return new ApiError(429, message, {
    headers: { 'retry-after': String(seconds) },
    fields: { message, retry_after_secs: seconds },
  });
}

/** For what nobody expected; the cause is for the log and is not told. */
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

/** An unknown id, a malformed one and another project's must be told in the same words: this is where they are. */
export function sandboxNotFound(id: string): ApiError {
  return notFound(`sandbox ${quote(id)} not found`);
}

export function jobNotFound(id: string): ApiError {
  return notFound(`job ${quote(id)} not found`);
}

export function imageNotFound(name: string): ApiError {
  return notFound(`image ${quote(name)} not found`);
}

const QUOTED_MAX = 80;

/** Shows a value inside a message: JSON-quoted (so control characters cannot fake lines) and cut to a readable length. */
export function quote(value: unknown): string {
  let text: string | undefined;
  if (typeof value === 'number' || typeof value === 'bigint') text = String(value);
  else if (typeof value === 'string')
    // Cut first: quoting a megabyte to show eighty characters of it would be work for an attacker's sake.
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
