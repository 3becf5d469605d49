/** The errors of operations: their own, and those that every operation of a plane has. */
import { ERROR_CODES, type ErrorCode, type ErrorStatus, GENERAL_CODES } from './errors.ts';
import type { Operation, Security } from './operation.ts';

const TOO_MANY = 'More requests than one API key or one organization may make in a minute.';
const UNAUTHORIZED: Partial<Record<Security, string>> = {
  workload: 'No API key, or an invalid one.',
  sandbox: 'No API key or access token of the sandbox, or an invalid one.',
  management: 'No OIDC token, or an invalid one. An API key is not accepted here.',
  operator: 'No operator credential, or an invalid one.',
  runner: 'No runner credential, or an invalid one.',
  gateway: 'No gateway credential, or an invalid one.',
};

/** Errors of the control plane's HTTP layer, before an operation's handler. */
function genericErrors(operation: Operation): [ErrorStatus, string][] {
  const { security, method, query, idempotent } = operation;
  const found: [ErrorStatus, string][] = [];
  if (query !== undefined) found.push([400, 'A query parameter is not valid, or is given more than once.']);
  if (operation.params !== undefined && 'refusal' in operation.params && operation.params.refusal === 400)
    found.push([400, 'The name in the path is not valid.']);
  if (method !== 'GET') {
    found.push([400, 'The body is not valid JSON, or too large.']);
    found.push([408, 'The body did not arrive in time.']);
  }
  if (idempotent === true) {
    found.push([400, 'The Idempotency-Key is not valid.']);
    found.push([
      409,
      'The Idempotency-Key was used for another request, or its first request is still in progress.',
    ]);
  }
  if (security === 'workload' || security === 'management') found.push([429, TOO_MANY]);
  if (security === 'public' && operation.rateLimited !== false)
    found.push([429, 'More requests than one address without valid credentials may make in a minute.']);
  found.push([503, 'A part of the service is temporarily unavailable: try again.']);
  if (security === 'management')
    found.push([503, "The issuer's keys cannot be fetched, or the server has no issuer of tokens."]);
  return found;
}

/** What a parameter of a path names, by the segment before it. */
const NAMED_BY: Readonly<Record<string, ErrorCode>> = {
  'api-keys': 'api_key_not_found',
  endpoints: 'endpoint_not_found',
  fns: 'function_not_found',
  'global-regions': 'global_region_not_found',
  'hardware-classes': 'class_not_found',
  hosts: 'host_not_found',
  images: 'image_not_found',
  invitations: 'invitation_not_found',
  invocations: 'invocation_not_found',
  jobs: 'job_not_found',
  'join-tokens': 'join_token_not_found',
  members: 'member_not_found',
  'object-store-mounts': 'mount_not_found',
  'object-stores': 'object_store_not_found',
  orgs: 'organization_not_found',
  projects: 'project_not_found',
  regions: 'region_not_found',
  registries: 'registry_not_found',
  schedules: 'schedule_not_found',
  secrets: 'secret_not_found',
  snapshots: 'snapshot_not_found',
  vms: 'sandbox_not_found',
  volumes: 'volume_not_found',
};

/** The codes of what a path names, `/fns/:name/schedules/:id` from left to right. */
export function pathCodes(path: string): ErrorCode[] {
  return [...path.matchAll(/([a-z-]+)\/:/g)].flatMap(([, segment = '']) => NAMED_BY[segment] ?? []);
}

/** The codes that an operation may send, beside the general code of each status. */
function ownCodes(operation: Operation): ErrorCode[] {
  const { security, server, idempotent, query, path } = operation;
  const plane: ErrorCode[] = [];
  if (server === undefined) {
    if (security === 'workload' || security === 'management' || security === 'public')
      plane.push('rate_limited');
    if (security === 'management') plane.push('sign_in_not_configured');
    if (operation.method !== 'GET') plane.push('request_too_large');
    if (idempotent === true)
      plane.push('idempotency_key_reused', 'idempotency_in_progress', 'idempotency_response_gone');
    const parameters: { properties?: object } | undefined = query;
    if ('cursor' in (parameters?.properties ?? {})) plane.push('invalid_cursor');
  }
  return [...pathCodes(path), ...(operation.codes ?? []), ...plane];
}

/** An error of an operation: its status, what it means there, and its codes with the general one first. */
export type OperationError = [status: ErrorStatus, meaning: string, codes: ErrorCode[]];

/** Every error of an operation. */
export function operationErrors(operation: Operation): OperationError[] {
  const all = new Map<ErrorStatus, string[]>();
  const add = (status: ErrorStatus, text: string): void => {
    const known = all.get(status) ?? [];
    if (!known.includes(text)) all.set(status, [...known, text]);
  };
  const unauthorized = UNAUTHORIZED[operation.security];
  if (unauthorized !== undefined) add(401, unauthorized);
  for (const [status, text] of Object.entries(operation.errors)) add(Number(status) as ErrorStatus, text);
  // Those of a gateway name all of theirs.
  if (operation.server === undefined)
    for (const [status, text] of genericErrors(operation)) add(status, text);
  add(500, 'An internal error.');
  const own = [...new Set(ownCodes(operation))];
  const has = (code: ErrorCode, status: ErrorStatus): boolean =>
    (ERROR_CODES[code].statuses as readonly ErrorStatus[]).includes(status);
  return [...all]
    .map(([status, texts]): OperationError => {
      const general = GENERAL_CODES[status];
      const codes = own.filter((code) => code !== general && has(code, status));
      return [status, texts.join(' '), [general, ...codes]];
    })
    .sort(([a], [b]) => a - b);
}
