/** The guards of the planes: each lets through the credential of its own plane, and of no other. */
import { timingSafeEqual } from 'node:crypto';
import { ApiError, bearerToken, tokenDigest, unauthorized } from '@releap/contract';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Authenticator, Principal } from '../auth/authenticator.ts';
import { countHeader, type CallerAuthenticator } from '../auth/caller.ts';
import { subjectOf } from './identity.ts';
import type { RateLimiter } from './rate-limits.ts';

export type Guard = (request: FastifyRequest, reply: FastifyReply, done: (error?: Error) => void) => void;
export type AsyncGuard = (request: FastifyRequest, reply: FastifyReply) => Promise<void>;

/** A project's API key. By callback: with a cached key nothing is awaited. */
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

/** The token of the installation, for its operators. */
export function operatorGuard(internalToken: string): Guard {
  const check = tokenGuard(internalToken);
  return (request, reply, done) => {
    request.operator = { name: 'operator' };
    check(request, reply, done);
  };
}

/** The token of the installation, for its runners and gateways. */
export function internalGuard(internalToken: string): Guard {
  const check = tokenGuard(internalToken);
  return (request, reply, done) => {
    request.peer = { kind: 'installation' };
    check(request, reply, done);
  };
}

function tokenGuard(internalToken: string): Guard {
  const expected = tokenDigest(internalToken);
  return (request, _reply, done) => {
    const token = bearerToken(request.headers.authorization);
    done(
      token !== null && timingSafeEqual(tokenDigest(token), expected)
        ? undefined
        : unauthorized('missing or invalid internal token'),
    );
  };
}

/** Continues by callback, as Fastify's hooks do. */
function continueAfter(promise: Promise<void>, onSuccess: () => void, onError: (error: Error) => void): void {
  promise.then(onSuccess, onError);
}

function refuseWorkload(token: string | null): ApiError {
  // Three parts with dots between them: a JWT was sent to an API-key route.
  return token !== null && /^[\w-]+\.[\w-]+\.[\w-]*$/.test(token)
    ? unauthorized("this route needs a project's API key (rlp_…), and not the OIDC token of a user")
    : unauthorized();
}
