/** The client of a request. A plane's guard sets its kind of identity on the request. */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Principal } from '../auth/authenticator.ts';
import type { RunnerIdentity } from '../credentials/runner-credentials.ts';
import type { Caller } from '../auth/caller.ts';

/** A person or program with the operator's credential. */
export interface Operator {
  /** Recorded in the audit log. */
  name: string;
}

declare module 'fastify' {
  interface FastifyRequest {
    principal: Principal | null;
    caller: Caller | null;
    operator: Operator | null;
    runner: RunnerIdentity | null;
    /** Key of the rate limit that is being counted. */
    rateLimitKey: string;
  }
  interface FastifyInstance {
    /** Aborted when the server begins to stop. */
    readonly closing: AbortSignal;
  }
}

/** Declares the properties above, so that all requests have one shape. */
export function decorateRequests(app: FastifyInstance, closing: AbortSignal): void {
  app.decorate('closing', closing);
  app.decorateRequest('principal', null);
  app.decorateRequest('caller', null);
  app.decorateRequest('operator', null);
  app.decorateRequest('runner', null);
  app.decorateRequest('rateLimitKey', '');
}

/** Identifies the client: the namespace of idempotency keys and rate limits. Part of stored digests. */
export function subjectOf(request: FastifyRequest): string {
  if (request.operator !== null) return request.operator.name;
  return `key ${request.principal?.keyId} user ${request.caller?.userId}`;
}
