import { chmod, mkdir, unlink } from 'node:fs/promises';
import type { ServerResponse } from 'node:http';
import { dirname } from 'node:path';
import {
  ApiError,
  bearerToken,
  REQUEST_ID_HEADER,
  requestIdSource,
  requestValidator,
  unavailable,
} from '@releap/contract';
import { traceRequests } from '@releap/tracing';
import Fastify, { type FastifyInstance, type FastifyRequest } from 'fastify';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { TSchema } from 'typebox';
import type { VerifyDataToken } from '../identity/data-token.ts';
import type { ReverseDialer } from './reverse-dialer.ts';
import { startTlsListener, type TlsListenerOptions } from './tls-listener.ts';

const METRICS_PATH = '/metrics';
/** A runner that starts finds its sandboxes again in less. */
const RETRY_AFTER_SECS = 1;
/** How long requests that have begun may take when it closes: others are refused meanwhile, and the next runner cannot start. */
const DRAIN_MS = 5_000;

export interface DataServerOptions {
  /** Absolute path of the Unix socket to listen on. */
  socketPath: string;
  /** Credentials of tenants never reach this server: gateway and control plane show tokens of their own. */
  verify: VerifyDataToken;
  register: (app: FastifyInstance) => Promise<void> | void;
  /**
   * Whether it is known by now what has become of this sandbox or build of an earlier run. Until then nothing is said of it but 503: a 404
   * would be believed. Default: always.
   */
  isKnown?: (id: string) => boolean;
  /** Where other machines reach it, if they do. */
  tls?: TlsListenerOptions | undefined;
  /** Opens connections to others, where they open none to this machine. */
  reverse?: ReverseDialer | undefined;
  /** Served at `/metrics` without a token, on the socket alone: only root can connect to that. */
  metrics?: Registry;
  log: Logger;
}

export interface DataServer {
  /** For the `hello` of the link: `https://host:port`, or `unix:/absolute/path.sock` when only this machine reaches it. */
  url: string;
  close(): Promise<void>;
}

/** The door through which gateway and control plane reach the sandboxes of this machine. */
export async function startDataServer(options: DataServerOptions): Promise<DataServer> {
  const { socketPath, tls, reverse, verify, register, isKnown = () => true, metrics, log } = options;
  // Level 'warn': one line a request would drown what matters.
  const requestId = requestIdSource();
  const app = Fastify({
    loggerInstance: log.child({ part: 'data' }, { level: 'warn' }),
    // Of the gateway or the control plane; each line about the request has it as `reqId`.
    genReqId: (request) => requestId(request.headers[REQUEST_ID_HEADER]),
    // Its own refusal while it closes does not say when to repeat the request.
    return503OnClosing: false,
  });
  let isClosing = false;
  const openRequests = new OpenRequests();
  traceRequests(app as unknown as FastifyInstance);
  app.addHook('onSend', async (request, reply) => {
    reply.header(REQUEST_ID_HEADER, request.id);
    if (isClosing) reply.header('connection', 'close');
  });
  app.addHook('onRequest', async (request, reply) => {
    // Streams in both directions last for as long as their client wants.
    if (request.headers.upgrade === undefined) openRequests.add(reply.raw);
    if (metrics !== undefined && request.url === METRICS_PATH && !isRemote(request)) return;
    const token = bearerToken(request.headers.authorization);
    // From the path and not from the route: an unknown operation of a sandbox or build is a 404 for who may open it.
    const id = /^\/(?:vms|builds)\/([^/?#%]+)\//.exec(request.url)?.[1];
    if (token !== null && id !== undefined && (await verify(token, id))) {
      if (isClosing) throw unavailable('the machine that has it is stopping', RETRY_AFTER_SECS);
      if (isKnown(id)) return;
      throw unavailable('the machine that has it is starting', RETRY_AFTER_SECS);
    }
    await reply.code(401).send({ error: 'missing or invalid data token for this sandbox or build' });
  });
  // Strict, as everywhere: a number is no command.
  app.setValidatorCompiler<TSchema>(({ schema, httpPart }) => requestValidator(schema, httpPart as 'body'));
  app.setErrorHandler<Error & { statusCode?: number }>((error, request, reply) => {
    const status = error instanceof ApiError ? error.status : (error.statusCode ?? 500);
    // An ApiError is a refusal, which a guest may cause at will.
    if (status >= 500 && !(error instanceof ApiError)) request.log.error({ err: error }, 'request failed');
    if (error instanceof ApiError) reply.headers(error.headers);
    return reply.code(status).send({ error: error.message });
  });
  app.setNotFoundHandler((request, reply) =>
    reply.code(404).send({ error: `no such path: ${request.method} ${request.url.split('?')[0]}` }),
  );
  await register(app as unknown as FastifyInstance);
  if (metrics !== undefined) {
    app.get(METRICS_PATH, async (_request, reply) =>
      reply.type(metrics.contentType).send(await metrics.metrics()),
    );
  }
  await mkdir(dirname(socketPath), { recursive: true, mode: 0o700 });
  // A socket file that a killed runner left behind refuses to be bound again.
  await unlink(socketPath).catch(() => undefined);
  await app.listen({ path: socketPath });
  await chmod(socketPath, 0o600);
  reverse?.serve(app.server);
  const close = async (): Promise<void> => {
    isClosing = true;
    await openRequests.ended(AbortSignal.timeout(DRAIN_MS));
    reverse?.close();
    await app.close();
  };
  if (tls === undefined) return { url: `unix:${socketPath}`, close };
  const listener = await startTlsListener(tls, app.server, log.child({ part: 'data' })).catch(
    async (error: unknown) => {
      await close();
      throw error;
    },
  );
  return {
    url: listener.url,
    async close() {
      listener.stop();
      await close();
      listener.close();
    },
  };
}

const isRemote = ({ raw }: FastifyRequest): boolean => 'encrypted' in raw.socket;

/** Requests that have not been answered to their end. */
class OpenRequests {
  readonly #open = new Set<ServerResponse>();
  #onEmpty: (() => void) | undefined;

  add(response: ServerResponse): void {
    this.#open.add(response);
    response.once('close', () => {
      this.#open.delete(response);
      if (this.#open.size === 0) this.#onEmpty?.();
    });
  }

  /** Resolves when there are none, or the signal is aborted. */
  async ended(signal: AbortSignal): Promise<void> {
    if (this.#open.size === 0) return;
    await new Promise<void>((resolve) => {
      this.#onEmpty = resolve;
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
  }
}
