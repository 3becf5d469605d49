/** The guards of the planes: each accepts only the credential of its plane. */
import { ApiError, bearerToken, unauthorized } from '@releap/contract';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Authenticator, Principal } from '../auth/authenticator.ts';
import { countHeader, type CallerAuthenticator } from '../auth/caller.ts';
import type { RunnerCredentials } from '../credentials/runner-credentials.ts';
import { type ControlTokens, isIn, type TokenSet } from '../credentials/token-set.ts';
import { subjectOf } from './identity.ts';
import type { RateLimiter } from './rate-limits.ts';

export type Guard = (request: FastifyRequest, reply: FastifyReply, done: (error?: Error) => void) => void;
export type AsyncGuard = (request: FastifyRequest, reply: FastifyReply) => Promise<void>;

/** A project's API key. By callback: a cached key needs no await. */
export function workloadGuard(authenticator: Authenticator, limiter: RateLimiter): Guard {
  return (request, reply, done) => {
    if (countHeader(request.raw, 'authorization') > 1) {
      return done(unauthorized('more than one Authorization header was sent: send one'));
    }
    const token = bearerToken(request.headers.authorization);
    const found = token === null ? null : authenticator.byApiKey(token);
    const settle = (principal: Principal | null): void => {
      if (principal === null) {
        const refusal = refuseWorkload(token);
        if (!limiter.active) return done(refusal);
        continueAfter(limiter.unknown(request, reply), () => done(refusal), done);
        return;
      }
      request.principal = principal;
      if (!limiter.active) return done();
      const { keyId, orgId } = principal;
      continueAfter(limiter.known(request, reply, { key: keyId, org: orgId }), done, done);
    };
    if (found instanceof Promise) found.then(settle, done);
    else settle(found);
  };
}

/** A user's OIDC token. */
export function managementGuard(callers: CallerAuthenticator, limiter: RateLimiter): AsyncGuard {
  return async (request, reply) => {
    try {
      request.caller = await callers.byRequest(request.raw, request.ip);
    } catch (error) {
      if (limiter.active && error instanceof ApiError && error.status === 401)
        await limiter.unknown(request, reply);
      throw error;
    }
    if (limiter.active) await limiter.known(request, reply, { key: subjectOf(request) });
  };
}

export function publicGuard(limiter: RateLimiter): AsyncGuard {
  return async (request, reply) => {
    if (limiter.active) await limiter.unknown(request, reply);
  };
}

/** The operator's token. */
export function operatorGuard(accepted: TokenSet): Guard {
  return (request, _reply, done) => {
    const valid = isIn(accepted, bearerToken(request.headers.authorization));
    if (valid) request.operator = { name: 'operator' };
    done(valid ? undefined : unauthorized('missing or invalid operator token'));
  };
}

/** The token that reads metrics, or the operator's. */
export function metricsGuard({ operator, metrics = () => [] }: ControlTokens): Guard {
  return (request, _reply, done) => {
    const token = bearerToken(request.headers.authorization);
    const isValid = [operator, metrics].map((accepted) => isIn(accepted, token)).includes(true);
    done(
      isValid ? undefined : unauthorized('missing or invalid token: send that of metrics or of the operator'),
    );
  };
}

/** The credential of the gateways. */
export function gatewayGuard(accepted: TokenSet): Guard {
  return (request, _reply, done) => {
    const valid = isIn(accepted, bearerToken(request.headers.authorization));
    done(valid ? undefined : unauthorized('missing or invalid gateway credential'));
  };
}

/** The credential of one runner. */
export function runnerGuard(credentials: RunnerCredentials): AsyncGuard {
  return async (request) => {
    request.runner = await credentials.authenticate(bearerToken(request.headers.authorization));
    if (request.runner === null) throw unauthorized('missing or invalid runner credential');
  };
}

/** Continues by callback, as Fastify's hooks do. */
function continueAfter(promise: Promise<void>, onSuccess: () => void, onError: (error: Error) => void): void {
  promise.then(onSuccess, onError);
}

function refuseWorkload(token: string | null): ApiError {
  // Three parts separated by dots: a JWT was sent to an API-key route.
  return token !== null && /^[\w-]+\.[\w-]+\.[\w-]*$/.test(token)
    ? unauthorized("this route needs a project's API key (rlp_…), and not the OIDC token of a user")
    : unauthorized();
}
