/**
 * Calls of functions at the base URL: passed on to a gateway as they are, which authenticates, queues and records them. The
 * control plane only finds the gateway.
 */
import {
  bearerToken,
  functionInvokeOperations,
  isUuid,
  REQUEST_ID_HEADER,
  unavailable,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { ControlContext } from '../../context.ts';
import { answerError } from '../../http/errors.ts';
import type { Module } from '../../module.ts';
import { gatewayAddress } from '../gateway-address.ts';
import { gatewayAgent } from '../gateway-agent.ts';
import { passThrough } from './pass-through.ts';

const REGION = statement<{ region: string }>(
  'ingress-function-region',
  'select region from functions where project_id = $1 and name = $2',
);

type Called = FastifyRequest<{ Params: { project?: string; name: string } }>;

export function functionIngressModule({ authenticator, cleanup, database, regions }: ControlContext): Module {
  // The gateway bounds the time in the queue and that of the handler.
  const agent = gatewayAgent();
  cleanup.defer(() => agent.destroy());

  /** Where the function runs. An unknown one is refused by any gateway. */
  async function gatewayOf({ params, headers }: Called): Promise<URL> {
    const all = (await regions.active()).filter(({ toolbox_proxy_url: url }) => url !== null);
    const [first] = all;
    if (first === undefined) throw unavailable('no region has a gateway that serves functions');
    if (all.length === 1) return new URL(await gatewayAddress(regions, first.id));
    const token = bearerToken(headers.authorization);
    const project =
      params.project ?? (token === null ? undefined : (await authenticator.byApiKey(token))?.projectId);
    const row =
      project === undefined || !isUuid(project)
        ? undefined
        : await queryOne(database.pool, REGION, [project, params.name]);
    return new URL(await gatewayAddress(regions, row?.region ?? first.id));
  }

  async function serve(request: Called, reply: FastifyReply): Promise<void> {
    const { origin, pathname } = await gatewayOf(request);
    await passThrough(request.raw, reply.raw, {
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
      },
    });
  }

  function routes(scope: FastifyInstance): void {
    scope.setErrorHandler((error, request, reply) => {
      // A page of any site may read why.
      if (isPublic(request)) reply.header('access-control-allow-origin', '*');
      answerError(error, request, reply);
    });
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, payload, done) => done(null, payload));
    const { invokeFunction, callPublicFunction } = functionInvokeOperations;
    for (const [url, methods] of [
      [invokeFunction.path, ['POST']],
      [callPublicFunction.path, ['POST', 'OPTIONS']],
    ] as const)
      scope.route<{ Params: Called['params'] }>({
        method: [...methods],
        url,
        config: { streamedBody: true },
        handler: serve,
      });
  }

  return {
    name: 'function-ingress',
    clientRoutes: routes,
  };
}

const isPublic = ({ params }: FastifyRequest): boolean => (params as Called['params']).project !== undefined;
