/** The bodies and statuses of errors: `{ "error": "<sentence>", … }` with the status of the table in docs/api.md. */
import { Type, type Static } from 'typebox';

/** The `code` is one of the status (error-codes.ts). */
const errorFields = {
  error: Type.String({ description: 'What was wrong, with which value, and what is allowed.' }),
  code: Type.String({
    description: 'What kind of error it is; the codes of an operation are listed with it.',
  }),
  request_id: Type.String({
    description: 'Of the `x-request-id` header; find the request in the logs by it.',
  }),
  retryable: Type.Boolean({
    description: 'Whether the same request can succeed later, unchanged. Wait for `Retry-After` first.',
  }),
};

export const ErrorBody = Type.Object(errorFields, { description: 'The form of every error.' });
export type ErrorBody = Static<typeof ErrorBody>;

export const OverloadBody = Type.Object(
  {
    ...errorFields,
    message: Type.String({ description: 'The same sentence as `error`.' }),
    retry_after_secs: Type.Integer({ description: 'Seconds to wait; also in the `Retry-After` header.' }),
  },
  { description: 'The service has no capacity for the create. Nothing was created.' },
);
export type OverloadBody = Static<typeof OverloadBody>;

/** Meanings of the error statuses, for the OpenAPI document and docs/api.md. */
export const STATUS_MEANINGS = {
  400: 'The request is invalid: malformed body, invalid value, unknown region, invalid cursor, over a cap.',
  401: 'Credentials are missing or invalid.',
  402: 'The owning organization has no credits left.',
  403: 'The credentials are valid and do not permit this.',
  404: 'The resource does not exist, or it belongs to another project.',
  408: 'The timeout of the command has passed, or the request body did not arrive in time.',
  409: 'The current state does not allow this: wrong lifecycle state, duplicate name, still in use.',
  413: 'The request body is too large.',
  416: 'No byte of the file is in the requested range.',
  429: 'No capacity, or too many requests; retry after the time in `Retry-After`.',
  500: 'An internal error.',
  501: 'This operation is not supported here.',
  502: 'A machine of the service did not respond.',
  503: 'A part of the service is temporarily unavailable; nothing was created, try again.',
  504: 'The response took longer than its deadline.',
  507: "The sandbox's disk is full.",
} as const;
export type ErrorStatus = keyof typeof STATUS_MEANINGS;
