/** The planes of a control server. */
import {
  COMPAT_PREFIX,
  internalOperations,
  operations,
  type Operation,
  operatorOperations,
} from '@releap/contract';
import type { FastifyPluginCallback } from 'fastify';
import type { Authenticator } from '../auth/authenticator.ts';
import type { CallerAuthenticator } from '../auth/caller.ts';
import type { RunnerCredentials } from '../credentials/runner-credentials.ts';
import type { ControlTokens } from '../credentials/token-set.ts';
import type { Idempotency } from '../idempotency/idempotency.ts';
import {
  type AsyncGuard,
  type Guard,
  gatewayGuard,
  managementGuard,
  metricsGuard,
  operatorGuard,
  publicGuard,
  runnerGuard,
  workloadGuard,
} from './guards.ts';
import type { ObserveRequest } from '../metrics/instruments.ts';
import { createPlane, type Plane, type PlaneOptions } from './plane.ts';
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
  /** Adds the audit of what API keys change. */
  auditKeys: (plane: Plane<'workload'>) => Plane<'workload'>;
  /** Adds the audit of what the operator does. */
  auditOperator: (plane: Plane<'operator'>) => Plane<'operator'>;
  /** How the facade answers errors and unknown routes. */
  facade: Pick<PlaneOptions, 'answerError' | 'answerNotFound'>;
  authenticator: Authenticator;
  callers: CallerAuthenticator;
  idempotency: Idempotency;
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
  const { authenticator, auditKeys, auditOperator, callers, tokens, runnerCredentials } = options;
  const shared = { idempotency: options.idempotency, onAnswer: options.onAnswer };
  const limiter = createRateLimiter(options.rateLimits ?? NO_RATE_LIMITS);
  const guards = { workload: workloadGuard(authenticator, limiter), address: publicGuard(limiter) };
  const planes = {
    // Health checks are not rate limited.
    public: createPlane<'public'>({
      guard: guards.address,
      exceptions: new Map(
        Object.values<Operation>(operations)
          .filter(({ rateLimited }) => rateLimited === false)
          .map((operation) => [operation, null]),
      ),
      ...shared,
    }),
    workload: auditKeys(createPlane<'workload'>({ guard: guards.workload, ...shared })),
    compat: auditKeys(
      createPlane<'workload'>({
        guard: guards.workload,
        prefix: COMPAT_PREFIX,
        ...options.facade,
        ...shared,
      }),
    ),
    management: createPlane<'management'>({ guard: managementGuard(callers, limiter), ...shared }),
    operator: auditOperator(
      createPlane<'operator'>({
        guard: operatorGuard(tokens.operator),
        // A program that reads metrics need not be able to drain hosts.
        exceptions: new Map([[operatorOperations.getMetrics, metricsGuard(tokens)]]),
        ...shared,
      }),
    ),
    runner: createPlane<'runner'>({
      guard: runnerGuard(runnerCredentials),
      // A joining runner has no credential yet.
      exceptions: new Map([[internalOperations.joinRunner, null]]),
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
