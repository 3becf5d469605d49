/**
 * Errors: their bodies `{ "error": "<sentence>", … }`, their statuses, and their codes, by which a client tells one refusal from
 * another: sentences change, codes do not. A code is never renamed and never given another meaning; new ones are added. Each status
 * has a general code, for what has no own.
 */
import { type Static, Type } from 'typebox';

/** The `code` is one of the status. */
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

interface ErrorCodeFacts {
  /** The statuses it comes with. */
  readonly statuses: readonly ErrorStatus[];
  /**
   * Whether the same request, unchanged, can succeed later. One that creates something is repeated with its
   * `Idempotency-Key`.
   */
  readonly retryable: boolean;
  readonly meaning: string;
}

const final = <const S extends readonly ErrorStatus[]>(meaning: string, ...statuses: S) => ({
  statuses,
  retryable: false as boolean,
  meaning,
});
const passing = <const S extends readonly ErrorStatus[]>(meaning: string, ...statuses: S) => ({
  statuses,
  retryable: true as boolean,
  meaning,
});

export const ERROR_CODES = {
  // The request.
  invalid_request: final('A field, a parameter, a header or the body is not valid; `error` names it.', 400),
  invalid_cursor: final('`cursor` is not the `next_cursor` of this list.', 400),
  request_too_large: final('The body, a file of it or the headers are too large.', 400, 413),
  ambiguous_reference: final('The text is the id of one resource and the name of another.', 400),
  unknown_region: final(
    'The region does not exist or is disabled, or none is given and there is no default.',
    400,
  ),
  limit_reached: final(
    'The owner has as many of these as a fixed limit allows. Delete some first.',
    400,
    409,
    429,
  ),
  request_timeout: passing('The body did not arrive in time, or a command has used its time.', 408),
  range_not_satisfiable: final('No byte of the file is in the range.', 416),

  // The caller.
  unauthorized: final('The credential is missing, invalid or revoked.', 401),
  out_of_credits: final('The organization has no credits left.', 402),
  forbidden: final('The credential does not permit this.', 403),
  owner_required: final('Only an owner of the organization may do this.', 403),
  email_not_verified: final("The caller's e-mail address is not verified at the issuer.", 403),
  other_recipient: final('The invitation is for another e-mail address.', 403),

  // What does not exist, or belongs to another.
  not_found: final('What the path names does not exist, or belongs to another.', 404),
  route_not_found: final('No operation has this method and path.', 404),
  api_key_not_found: final('There is no such API key.', 404),
  artifact_not_found: final('The runner is assigned nothing that names this artifact or blob.', 404),
  class_not_found: final('There is no such class of hardware.', 404),
  endpoint_not_found: final('The sandbox has no such endpoint, or its port has none.', 404),
  function_not_found: final('There is no such function.', 404),
  function_version_not_found: final('The function has no version that can serve.', 404),
  global_region_not_found: final('There is no such global region.', 404),
  host_not_found: final('There is no such host.', 404),
  image_not_found: final('There is no such image.', 404),
  invitation_not_found: final('There is no such pending invitation.', 404),
  invocation_not_found: final('There is no such invocation.', 404),
  job_not_found: final('There is no such job.', 404),
  join_token_not_found: final('There is no such join token.', 404),
  log_not_found: final('There is no such log: nothing has written one yet, or it is not kept.', 404),
  member_not_found: final('The user is not a member of the organization.', 404),
  mount_not_found: final('The sandbox does not mount it.', 404),
  object_store_not_found: final('There is no such object store.', 404),
  organization_not_found: final('There is no such organization.', 404),
  project_not_found: final('There is no such project.', 404),
  region_not_found: final('There is no such region.', 404),
  registry_not_found: final('There are no credentials for this registry.', 404),
  sandbox_not_found: final('There is no such sandbox.', 404),
  sandbox_off_host: final('The sandbox does not run on a host.', 404),
  schedule_not_found: final('The function has no such schedule.', 404),
  secret_not_found: final('There is no such secret.', 404),
  snapshot_not_found: final('There is no such snapshot.', 404),
  volume_not_found: final('There is no such volume.', 404),
  volume_commit_not_found: final('The volume has no such commit.', 404),

  // The state.
  conflict: final('The state does not allow this.', 409),
  already_exposed: final('The port has an endpoint already.', 409),
  built_in: final('It belongs to the service and cannot be changed.', 409),
  concurrent_change: passing('Others change it at the same time.', 409),
  host_lost: final('The host that has it is lost.', 409),
  host_not_lost: final('Only a host that is lost can be forgotten.', 409),
  idempotency_in_progress: passing('The first request with this Idempotency-Key has not ended.', 409),
  idempotency_key_reused: final('The Idempotency-Key was used for another request.', 409),
  idempotency_response_gone: final(
    'The request succeeded before, and its response is no longer available.',
    409,
  ),
  image_failed: final('The image could not be built.', 409),
  image_not_ready: passing('The image is not built yet, or not yet in the region.', 409),
  in_use: final('Something else uses it: `error` names it.', 409),
  last_owner: final('An organization keeps one owner.', 409),
  mount_path_taken: final('The path is mounted already, or contains a mount, or is in one.', 409),
  mount_rejected: final('The host of the sandbox rejected the mount; `error` has its reason.', 409),
  name_exists: final('Another has this name.', 409),
  no_capacity: passing('The host that has its data has no capacity for it now, or cannot run it.', 409),
  not_persistent: final('Only a persistent sandbox can do this.', 409),
  personal_organization: final('A personal organization cannot be deleted or shared.', 409),
  sandbox_not_running: final('The sandbox is not running.', 409),
  secret_missing: final('A secret that it needs was deleted.', 409),
  snapshot_failed: final('The snapshot failed, or was lost with its host.', 409),
  snapshot_not_ready: passing('The snapshot is not ready yet, or not yet in the region.', 409),
  wrong_state: final('The resource is in a state that does not allow this; `error` names the state.', 409),

  // The service.
  overloaded: passing('The service has no capacity for this now. Nothing was created.', 429),
  rate_limited: passing('More requests than allowed in a minute.', 429),
  quota_exceeded: passing(
    'The organization would exceed a quota, until it has ended or deleted some; `resource` and `limit` say which.',
    429,
  ),
  internal_error: final('An error of the service.', 500),
  not_supported: final('The service does not have this operation.', 501),
  bad_gateway: passing('A machine of the service did not answer, or not as it must.', 502),
  handler_failed: final('The handler of the function did not start or did not answer with HTTP.', 502),
  unavailable: passing('A part of the service is temporarily unavailable. Nothing was created.', 503),
  sign_in_not_configured: final('The server has no issuer of tokens.', 503),
  gateway_timeout: passing('A machine of the service did not answer in time.', 504),
  handler_timeout: final('The handler of the function did not answer within its time.', 504),
  disk_full: final("The sandbox's disk is full.", 507),
} as const satisfies Record<string, ErrorCodeFacts>;

export type ErrorCode = keyof typeof ERROR_CODES;

/** The codes that a status can have. */
export type CodeOf<S extends ErrorStatus> = {
  [C in ErrorCode]: S extends (typeof ERROR_CODES)[C]['statuses'][number] ? C : never;
}[ErrorCode];

/** The code of an error that has no own. */
export const GENERAL_CODES = {
  400: 'invalid_request',
  401: 'unauthorized',
  402: 'out_of_credits',
  403: 'forbidden',
  404: 'not_found',
  408: 'request_timeout',
  409: 'conflict',
  413: 'request_too_large',
  416: 'range_not_satisfiable',
  429: 'overloaded',
  500: 'internal_error',
  501: 'not_supported',
  502: 'bad_gateway',
  503: 'unavailable',
  504: 'gateway_timeout',
  507: 'disk_full',
} as const satisfies { [S in ErrorStatus]: CodeOf<S> };

export function isErrorCode(text: string): text is ErrorCode {
  return Object.hasOwn(ERROR_CODES, text);
}

/** All codes of a status, the general one first. */
export function codesOf(status: ErrorStatus): ErrorCode[] {
  const general: ErrorCode = GENERAL_CODES[status];
  const all = Object.entries<ErrorCodeFacts>(ERROR_CODES) as [ErrorCode, ErrorCodeFacts][];
  const own = all.filter(([code, { statuses }]) => code !== general && statuses.includes(status));
  return [general, ...own.map(([code]) => code)];
}
