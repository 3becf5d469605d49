/** The Fastify server on which planes are mounted. */
import type { Server } from 'node:http';
import type { HostCertificate } from '@releap/certificates/hosts';
import {
  ApiError,
  badRequest,
  BOUNDS,
  discardBody,
  errorBody,
  REQUEST_ID_HEADER,
  requestIdSource,
} from '@releap/contract';
import { traceRequests } from '@releap/tracing';
import fastify, {
  LogController,
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyPluginCallback,
} from 'fastify';
import type { Logger } from 'pino';
import { BODY_LIMITS, watchBody, type BodyLimits } from './body-deadline.ts';
import { answerError, type AnswerError } from './errors.ts';
import { decorateRequests } from './identity.ts';
import { routeNotFound } from './plane.ts';
import { type OtherProtocol, serveTlsToOthers } from './tls-for-others.ts';

export interface HttpServer {
  readonly fastify: FastifyInstance;
  readonly server: Server;
  /**
   * @param others another protocol at this port, where there is TLS
   * @param certificate if given, other machines are served over TLS alone
   * @returns the URL that it listens on, for programs of this machine
   */
  listen(
    address: { host: string; port: number },
    certificate?: Pick<HostCertificate, 'get' | 'onChange'>,
    others?: OtherProtocol,
  ): Promise<string>;
  /** Keeps no connection alive from now on. */
  drain(): void;
  /** Refuses new requests, ends long polls, and after a grace period closes open connections. */
  close(): Promise<void>;
}

export interface HttpServerOptions {
  /** Plugins of the planes (`Plane.plugin`), and others. */
  plugins: readonly FastifyPluginCallback[];
  /** Addresses and CIDR blocks of proxies whose `X-Forwarded-For` is believed. */
  trustedProxies?: readonly string[];
  /** How errors below these prefixes are answered that no plane gets to see. */
  answers?: readonly { prefix: string; answerError: AnswerError }[];
  /** Deadlines of request bodies. */
  bodyLimits?: BodyLimits;
  log: Logger;
}

const requestId = requestIdSource();

/** Longest time until the headers of a request have arrived. */
const HEADERS_MS = 60_000;
/** Grace period of open responses when the server stops. */
const CLOSE_MS = 3_000;

export function createHttpServer(options: HttpServerOptions): HttpServer {
  const { plugins, trustedProxies = [], answers = [], bodyLimits = BODY_LIMITS, log } = options;
  const closing = new AbortController();
  let isDraining = false;
  let endHandshakes: (() => void) | undefined;
  const base: FastifyBaseLogger = log;
  const app = fastify({
    loggerInstance: base,
    trustProxy: trustedProxies.length > 0 ? [...trustedProxies] : false,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BOUNDS.requestBodyBytes,
    // Bodies have deadlines of their own (body-deadline.ts); responses may take as long as a long poll.
    requestTimeout: 0,
    http: { headersTimeout: HEADERS_MS },
    forceCloseConnections: 'idle',
    routerOptions: { maxParamLength: 4096 },
    genReqId: (request) => requestId(request.headers[REQUEST_ID_HEADER]),
    // Of paths that no plane gets to see.
    frameworkErrors: (error, request, reply) =>
      (answers.find(({ prefix }) => request.url.startsWith(prefix))?.answerError ?? answerError)(
        error,
        request,
        reply,
      ),
    clientErrorHandler(error, socket) {
      if (!socket.writable || (error as NodeJS.ErrnoException).code === 'ECONNRESET') {
        socket.destroy();
        return;
      }
      const tooLarge = (error as NodeJS.ErrnoException).code === 'HPE_HEADER_OVERFLOW';
      const refusal = tooLarge
        ? badRequest(
            'the headers of the request are too large: at most 16 KiB are allowed',
            'request_too_large',
          )
        : badRequest('the request is not valid HTTP');
      const id = requestId(undefined);
      const body = JSON.stringify(errorBody(refusal, id));
      socket.end(
        `HTTP/1.1 400 Bad Request\r\n${REQUEST_ID_HEADER}: ${id}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`,
      );
    },
  });
  decorateRequests(app, closing.signal);
  app.setErrorHandler(answerError);
  app.setNotFoundHandler(routeNotFound);
  traceRequests(app);
  app.addHook('onRequest', (request, reply, done) => {
    if (isDraining) reply.raw.shouldKeepAlive = false;
    watchBody(request, reply, bodyLimits);
    done();
  });
  app.addHook('onSend', async (request, reply) => {
    reply.header(REQUEST_ID_HEADER, request.id);
    // A body that did not arrive in time is not waited for again.
    if (reply.statusCode >= 400 && reply.statusCode !== 408 && !(await discardBody(request.raw)))
      reply.header('connection', 'close');
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
  for (const plugin of plugins) void app.register(plugin);

  return {
    fastify: app,
    server: app.server,
    async listen(address, certificate, others) {
      if (certificate !== undefined)
        endHandshakes = await serveTlsToOthers(app.server, certificate, log, others);
      return await app.listen(address);
    },
    drain() {
      isDraining = true;
    },
    async close() {
      closing.abort(new ApiError(503, 'the server is stopping'));
      const timer = setTimeout(() => {
        app.server.closeAllConnections();
        endHandshakes?.();
      }, CLOSE_MS);
      try {
        await app.close();
      } finally {
        clearTimeout(timer);
      }
    },
  };
}
