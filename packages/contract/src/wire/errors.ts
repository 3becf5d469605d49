/** The bodies and statuses of errors: `{ "error": "<sentence>" }` with the status of the table in docs/api.md. */
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
  { description: 'The service has no capacity for the create. Nothing was created.' },
);
export type OverloadBody = Static<typeof OverloadBody>;

/** What each status means here; the OpenAPI document and docs/api.md take their words from it. */
export const STATUS_MEANINGS = {
  400: 'The request is not valid: malformed body, bad value, unknown region, bad cursor, over a cap.',
  401: 'Credentials are missing or not valid.',
  402: 'The owning organization has no credits left.',
  403: 'The credentials are valid and do not permit this.',
  404: 'There is no such thing, or it belongs to another project.',
  408: 'The timeout of the command has passed.',
  409: 'The current state does not allow this: wrong lifecycle state, duplicate name, still in use.',
  429: 'No capacity, or too many requests; wait as long as `Retry-After` says.',
  500: 'Something broke inside the service.',
  501: 'This operation is not supported here.',
  502: 'The machine that should answer did not.',
  503: 'A part of the service is temporarily unavailable; nothing was created, try again.',
  504: 'The answer took longer than its deadline.',
  507: "The sandbox's disk is full.",
} as const;
export type ErrorStatus = keyof typeof STATUS_MEANINGS;
