/**
 * Calls of functions at the base URL: authenticated and counted as other requests of clients, and passed on to a gateway as they are,
 * which authorizes, queues and records them.
 */
import type { Database } from '@releap/database';
import type { Regions } from '../../fleet/regions/regions.ts';
import { functionInvokeOperations, isUuid, REQUEST_ID_HEADER, unavailable } from '@releap/contract';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { answerError } from '../../platform/http/errors.ts';
import type { ClientGuards } from '../../platform/http/planes.ts';
import type { Module } from '../../platform/module.ts';
import { gatewayAddress } from '../versions/gateway-address.ts';
import { gatewayAgent } from '../versions/gateway-agent.ts';
import { FunctionRegions } from './function-regions.ts';
import { passThrough } from './pass-through.ts';

/** Longer ones are unknown. */
const NAME_MAX = 128;

type Called = FastifyRequest<{ Params: { project?: string; name: string } }>;

export interface FunctionIngressModuleOptions {
  cleanup: AsyncDisposableStack;
  database: Database;
  draining: AbortController;
  regions: Regions;
}

export function functionIngressModule({
  cleanup,
  database,
  draining,
  regions,
}: FunctionIngressModuleOptions): Module {
  // The gateway bounds the time in the queue and that of the handler.
  const agent = gatewayAgent();
  cleanup.defer(() => agent.destroy());

  const known = new FunctionRegions(database);
  const open = new Set<Promise<void>>();

  /** Null for an unknown function, which any gateway refuses. */
  async function regionOf({ params, principal }: Called): Promise<string | null> {
    const project = params.project ?? principal?.projectId;
    return project === undefined || !isUuid(project) || params.name.length > NAME_MAX
      ? null
      : await known.find(project, params.name);
  }

  async function gatewayOf(request: Called): Promise<URL> {
    const all = (await regions.recent()).filter(({ toolbox_proxy_url: url }) => url !== null);
    const [first] = all;
    if (first === undefined) throw unavailable('no region has a gateway that serves functions');
    const region = all.length === 1 ? first.id : await regionOf(request);
    return new URL(await gatewayAddress(regions, region ?? first.id));
  }

  async function serve(request: Called, reply: FastifyReply): Promise<void> {
    const { origin, pathname } = await gatewayOf(request);
    const passing = passThrough(request.raw, reply.raw, {
      dispatcher: agent,
      origin,
      path: `${pathname.replace(/\/$/, '')}${request.raw.url ?? ''}`,
      headers: {
        'x-forwarded-for': request.ip,
        'x-forwarded-host': request.host,
        'x-forwarded-proto': request.protocol,
        [REQUEST_ID_HEADER]: request.id,
      },
      onBegin: () => {
        reply.hijack();
        // One that has begun to wait before the drain, too.
        if (draining.signal.aborted) reply.raw.shouldKeepAlive = false;
      },
    });
    open.add(passing);
    await passing.finally(() => open.delete(passing));
  }

  function routes(scope: FastifyInstance, { workload, address }: ClientGuards): void {
    /** Public functions have callers without credentials: what counts for their address is to guess a function. */
    const guardPublic = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
      // Gateways know the functions that they serve, also while the database does not answer.
      const region = await regionOf(request as Called).catch(() => undefined);
      if (region === null) await address(request, reply);
    };
    scope.setErrorHandler((error, request, reply) => {
      // A page of any site may read why.
      if (isPublic(request)) reply.header('access-control-allow-origin', '*');
      answerError(error, request, reply);
    });
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, payload, done) => done(null, payload));
    const { invokeFunction, callPublicFunction } = functionInvokeOperations;
    for (const [url, methods, onRequest] of [
      [invokeFunction.path, ['POST'], workload],
      [callPublicFunction.path, ['POST', 'OPTIONS'], guardPublic],
    ] as const)
      scope.route<{ Params: Called['params'] }>({
        method: [...methods],
        url,
        onRequest,
        config: { streamedBody: true },
        handler: serve,
      });
  }

  return {
    name: 'function-ingress',
    clientRoutes: routes,
    // Calls that come meanwhile are waited for as well: a balancer learns of the drain a little later.
    async drain() {
      while (open.size > 0) await Promise.allSettled(open);
    },
  };
}

const isPublic = ({ params }: FastifyRequest): boolean => (params as Called['params']).project !== undefined;
