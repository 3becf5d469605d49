/** The errors of operations: their own, and those that every operation of a plane has. */
import type { TSchema } from 'typebox';
import { ErrorBody, type ErrorStatus, OverloadBody } from './errors.ts';
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

/** Every error of an operation, with its meaning there. */
export function operationErrors(operation: Operation): [ErrorStatus, string][] {
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
  return [...all]
    .map(([status, texts]): [ErrorStatus, string] => [status, texts.join(' ')])
    .sort(([a], [b]) => a - b);
}

/** The body of an error. */
export function errorSchema(status: ErrorStatus): TSchema {
  return status === 429 ? OverloadBody : ErrorBody;
}
