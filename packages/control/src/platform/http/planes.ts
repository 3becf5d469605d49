/** The planes of a control server. */
import { COMPAT_PREFIX, internalOperations, operations, type Operation } from '@releap/contract';
import type { Database } from '@releap/database';
import type { FastifyPluginCallback } from 'fastify';
import type { Authenticator } from '../auth/authenticator.ts';
import type { CallerAuthenticator } from '../auth/caller.ts';
import { answerCompatError, answerUnlisted } from '../../edge/compat/errors.ts';
import type { RunnerCredentials } from '../credentials/runner-credentials.ts';
import type { ControlTokens } from '../credentials/token-set.ts';
import type { Idempotency } from '../idempotency/idempotency.ts';
import type { KeyAudit } from '../../tenancy/management/key-audit.ts';
import { audited } from '../../tenancy/operator/audit.ts';
import {
  type AsyncGuard,
  type Guard,
  gatewayGuard,
  managementGuard,
  operatorGuard,
  publicGuard,
  runnerGuard,
  workloadGuard,
} from './guards.ts';
import type { ObserveRequest } from '../metrics/instruments.ts';
import { createPlane, type Plane } from './plane.ts';
import { createRateLimiter, NO_RATE_LIMITS, type RateLimits } from './rate-limits.ts';

export interface Planes {
  /** No credential. */
  readonly public: Plane<'public'>;
  /** A project's API key. */
  readonly workload: Plane<'workload'>;
  /** A project's API key, in the wire protocol of another service. */
  readonly compat: Plane<'workload'>;
  /** A user's OIDC token. */
  readonly management: Plane<'management'>;
  /** The operator's credential. */
  readonly operator: Plane<'operator'>;
  /** The credential of one runner. */
  readonly runner: Plane<'runner'>;
  /** The credential of the gateways. */
  readonly gateway: Plane<'gateway'>;
}

export interface PlanesOptions {
  authenticator: Authenticator;
  callers: CallerAuthenticator;
  keyAudit: KeyAudit;
  idempotency: Idempotency;
  database: Database;
  tokens: ControlTokens;
  runnerCredentials: RunnerCredentials;
  rateLimits?: RateLimits | undefined;
  /** Called after each answer; for metrics. */
  onAnswer?: ObserveRequest;
}

/** For routes of clients that are not operations of a plane. */
export interface ClientGuards {
  /** Accepts a project's API key. */
  readonly workload: Guard;
  /** Counts the request for its address. */
  readonly address: AsyncGuard;
}

export interface MountablePlanes {
  readonly planes: Planes;
  readonly guards: ClientGuards;
  /** Public, workload, facade and management operations, for clients. */
  readonly clientPlugins: readonly FastifyPluginCallback[];
  /** Operations of the operator, of runners and of gateways; these have a link besides (gateways/). */
  readonly internalPlugins: readonly FastifyPluginCallback[];
}

export function createPlanes(options: PlanesOptions): MountablePlanes {
  const { authenticator, callers, keyAudit, tokens, runnerCredentials } = options;
  const shared = { idempotency: options.idempotency, onAnswer: options.onAnswer };
  const limiter = createRateLimiter(options.rateLimits ?? NO_RATE_LIMITS);
  const guards = { workload: workloadGuard(authenticator, limiter), address: publicGuard(limiter) };
  const planes = {
    // Health checks are not rate limited.
    public: createPlane<'public'>({
      guard: guards.address,
      unguarded: Object.values<Operation>(operations).filter(({ rateLimited }) => rateLimited === false),
      ...shared,
    }),
    workload: keyAudit.audited(createPlane<'workload'>({ guard: guards.workload, ...shared })),
    compat: keyAudit.audited(
      createPlane<'workload'>({
        guard: guards.workload,
        prefix: COMPAT_PREFIX,
        answerNotFound: answerUnlisted,
        answerError: answerCompatError,
        ...shared,
      }),
    ),
    management: createPlane<'management'>({ guard: managementGuard(callers, limiter), ...shared }),
    operator: audited(
      createPlane<'operator'>({ guard: operatorGuard(tokens.operator), ...shared }),
      options.database,
    ),
    runner: createPlane<'runner'>({
      guard: runnerGuard(runnerCredentials),
      // A joining runner has no credential yet.
      unguarded: [internalOperations.joinRunner],
      ...shared,
    }),
    gateway: createPlane<'gateway'>({ guard: gatewayGuard(tokens.gateway), ...shared }),
  };
  return {
    planes,
    guards,
    clientPlugins: [limiter, planes.public, planes.workload, planes.compat, planes.management].map(
      ({ plugin }) => plugin,
    ),
    internalPlugins: [planes.operator.plugin, planes.runner.plugin, planes.gateway.plugin],
  };
}
