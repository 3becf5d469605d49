/** The HTTP side: one wrapper that gives each operation of the contract its route, its checks and its principal. */
import type { Server } from 'node:http';
import {
  ApiError,
  bearerToken,
  BOUNDS,
  fastifySchema,
  IDEMPOTENCY_HEADER,
  notFound,
  operations,
  REPLAYED_HEADER,
  requestValidator,
  unauthorized,
  type Operation,
} from '@releap/contract';
import fastify, {
  LogController,
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
} from 'fastify';
import type { Logger } from 'pino';
import type { Static, TSchema } from 'typebox';
import type { Authenticator, Principal } from '../auth/authenticator.ts';
import { countHeader, type Caller, type CallerAuthenticator } from '../auth/caller.ts';
import { RANDOM, type Fresh } from '../idempotency/fresh.ts';
import type { Idempotency } from '../idempotency/idempotency.ts';
import { answerError } from './errors.ts';
import { readJson } from './json.ts';
import { createRateLimiter, NO_RATE_LIMITS, type RateLimits } from './rate-limits.ts';

type Of<O extends Operation, K extends 'params' | 'query' | 'body'> = O[K] extends TSchema
  ? Static<O[K]>
  : undefined;

export interface Call<O extends Operation> {
  params: Of<O, 'params'>;
  query: Of<O, 'query'>;
  body: Of<O, 'body'>;
  /** The project whose key was shown; on workload operations. */
  principal: O['security'] extends 'workload' ? Principal : never;
  /** The signed-in user; on management operations. */
  caller: O['security'] extends 'management' ? Caller : never;
  request: FastifyRequest;
  reply: FastifyReply;
  /** Where the ids and tokens of what is made come from, so that a repeated request makes nothing twice. */
  fresh: Fresh;
  /** Aborted when the caller has gone away or the server stops. Made on demand. */
  gone: () => AbortSignal;
}

export interface App {
  readonly fastify: FastifyInstance;
  /** Gives an operation of the contract its handler. What it returns is the body. */
  operation<O extends Operation>(operation: O, handler: (call: Call<O>) => Promise<unknown>): void;
  readonly server: Server;
  close(): Promise<void>;
}

export interface AppOptions {
  authenticator: Authenticator;
  callers: CallerAuthenticator;
  idempotency: Idempotency;
  rateLimits?: RateLimits;
  /** Whose word on where a request came from is taken; none by default. */
  trustedProxies: readonly string[];
  log: Logger;
}

const HEALTH_PATH = operations.getHealth.path;
/** How long open answers get to end when the server stops. */
const CLOSE_MS = 3_000;

export function createApp(options: AppOptions): App {
  const { authenticator, callers, idempotency, rateLimits, trustedProxies, log } = options;
  const closing = new AbortController();
  const base: FastifyBaseLogger = log;
  const app = fastify({
    loggerInstance: base,
    trustProxy: trustedProxies.length > 0 ? [...trustedProxies] : false,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BOUNDS.requestBodyBytes,
    // Headers and body must arrive in this time; answers may take as long as a long poll.
    requestTimeout: 60_000,
    forceCloseConnections: 'idle',
    routerOptions: { maxParamLength: 4096 },
    genReqId: (request) => requestId(request.headers['x-request-id']),
    frameworkErrors: (error, request, reply) => answerError(error, request, reply),
    clientErrorHandler(error, socket) {
      if (!socket.writable || (error as NodeJS.ErrnoException).code === 'ECONNRESET') {
        socket.destroy();
        return;
      }
      const tooLarge = (error as NodeJS.ErrnoException).code === 'HPE_HEADER_OVERFLOW';
      const body = JSON.stringify({
        error: tooLarge
          ? 'the headers of the request are too large: at most 16 KiB are allowed'
          : 'the request is not valid HTTP',
      });
      socket.end(
        `HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`,
      );
    },
  });

  const limiter = createRateLimiter(app, rateLimits ?? NO_RATE_LIMITS);
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, data, done) => {
    try {
      done(null, readJson(request.headers['content-type'], data as Buffer));
    } catch (error) {
      done(error as Error, undefined);
    }
  });
  app.setValidatorCompiler<TSchema>(({ schema, httpPart }) => {
    const validator = requestValidator(schema, httpPart as 'body');
    if (httpPart !== 'params' || (schema as { refusal?: number }).refusal === 400) return validator;
    // A path with a name that nothing can have leads to nothing.
    return (data) => {
      const result = validator(data);
      return 'error' in result ? { error: notFound(result.error.message) } : result;
    };
  });
  app.setErrorHandler(answerError);
  app.setNotFoundHandler((request, reply) =>
    reply
      .code(404)
      .send({ error: `no such route: ${request.method} ${request.url.split('?', 1)[0]?.slice(0, 200)}` }),
  );
  app.addHook('onSend', (request, reply, _payload, done) => {
    reply.header('x-request-id', request.id);
    done();
  });
  if (log.isLevelEnabled('debug')) {
    app.addHook('onResponse', (request, reply, done) => {
      request.log.debug(
        { method: request.method, url: request.url, status: reply.statusCode, ms: reply.elapsedTime },
        'answered',
      );
      done();
    });
  }

  const principals = new WeakMap<FastifyRequest, Principal>();
  const authenticate = (
    request: FastifyRequest,
    reply: FastifyReply,
    done: (error?: Error) => void,
  ): void => {
    if (countHeader(request.raw, 'authorization') > 1) {
      return done(unauthorized('more than one Authorization header was sent: send one'));
    }
    const token = bearerToken(request.headers.authorization);
    const found = token === null ? null : authenticator.byApiKey(token);
    const settle = (principal: Principal | null): void => {
      if (principal === null) {
        const refusal = refuseWorkload(token);
        if (!limiter.active) return done(refusal);
        after(limiter.unknown(request, reply), () => done(refusal), done);
        return;
      }
      principals.set(request, principal);
      if (!limiter.active) return done();
      const { keyId, orgId } = principal;
      after(limiter.known(request, reply, { key: keyId, org: orgId }), done, done);
    };
    if (found instanceof Promise) found.then(settle, done);
    else settle(found);
  };

  const signedIn = new WeakMap<FastifyRequest, Caller>();
  const identify = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    try {
      signedIn.set(request, await callers.byRequest(request.raw, request.ip));
    } catch (error) {
      if (limiter.active && error instanceof ApiError && error.status === 401)
        await limiter.unknown(request, reply);
      throw error;
    }
    if (limiter.active) await limiter.known(request, reply, { key: asker(request) });
  };
  const anybody = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    if (limiter.active) await limiter.unknown(request, reply);
  };
  const guards = {
    workload: { onRequest: authenticate },
    management: { onRequest: identify },
    public: { onRequest: anybody },
  };
  /** One caller: what he repeats is his alone. */
  const asker = (request: FastifyRequest): string =>
    `key ${principals.get(request)?.keyId} user ${signedIn.get(request)?.userId}`;

  return {
    fastify: app,
    server: app.server,
    operation(operation, handler) {
      const schema = fastifySchema(operation);
      // Answers are plain JSON.stringify: faster for these records than a compiled serializer with unions.
      delete schema.response;
      app.route({
        method: operation.method,
        url: operation.path,
        schema,
        // A probe of the service's health comes as often as it likes.
        ...(operation.path === HEALTH_PATH ? {} : guards[operation.security]),
        handler: async (request, reply) => {
          // One for the whole call: a long poll asks for it with every change that wakes it.
          let left: AbortSignal | undefined;
          const perform = (fresh: Fresh): Promise<unknown> =>
            handler({
              params: request.params as never,
              query: request.query as never,
              body: request.body as never,
              principal: principals.get(request) as never,
              caller: signedIn.get(request) as never,
              fresh,
              request,
              reply,
              gone: () => (left ??= goneSignal(reply, closing.signal)),
            });
          const key = request.headers[IDEMPOTENCY_HEADER];
          if (operation.repeats === undefined || key === undefined) return perform(RANDOM);
          const { method, url, body } = request;
          const { answer, replayed } = await idempotency.run(
            {
              caller: asker(request),
              key: String(key),
              request: { method, url, body },
              repeatable: operation.repeats === 'same',
            },
            perform,
          );
          if (replayed) reply.header(REPLAYED_HEADER, 'true');
          return answer;
        },
      });
    },
    async close() {
      closing.abort(new ApiError(503, 'the server is stopping'));
      const timer = setTimeout(() => app.server.closeAllConnections(), CLOSE_MS);
      try {
        await app.close();
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

/** Goes on by callback, as Fastify's hooks do, once a promise is settled. */
function after(promise: Promise<void>, good: () => void, bad: (error: Error) => void): void {
  promise.then(good, bad);
}

function refuseWorkload(token: string | null): ApiError {
  // Three parts with dots between: somebody who is signed in has taken the wrong door.
  return token !== null && /^[\w-]+\.[\w-]+\.[\w-]*$/.test(token)
    ? unauthorized("this route wants a project's API key (rlp_…), and not the OIDC token of a user")
    : unauthorized();
}

function goneSignal(reply: FastifyReply, closing: AbortSignal): AbortSignal {
  const left = new AbortController();
  reply.raw.once('close', () => left.abort());
  if (reply.raw.destroyed) left.abort();
  return AbortSignal.any([left.signal, closing]);
}

let counter = 0;
const start = Date.now().toString(36);

/** The caller's own id when it is harmless, else one of ours. */
function requestId(given: string | string[] | undefined): string {
  if (typeof given === 'string' && /^[A-Za-z0-9._-]{1,100}$/.test(given)) return given;
  counter = (counter + 1) % Number.MAX_SAFE_INTEGER;
  return `${start}-${counter.toString(36)}`;
}
