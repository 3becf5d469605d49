import { once } from 'node:events';
import type { Server as HttpServer } from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import type { Logger } from 'pino';
import type { Grants } from '../control/grants.ts';
import { startTlsListener, type TlsOptions } from '../http/tls-listener.ts';
import type { TrustedProxies } from '../http/trusted-proxies.ts';
import type { GatewayLimits } from '../limits.ts';
import { Engine, type EngineOptions } from './engine.ts';

export interface PreviewFrontOptions {
  /** Clients use https. */
  isTls: boolean;
  /** Where previews are served over plain HTTP, besides the gateway's own port. */
  listen?: { host: string; port: number };
  /** A listener with a certificate for the names below the domain. */
  tls?: TlsOptions;
  /** HAProxy listens at these ports instead. Without it, or if it cannot be started, the gateway does itself. */
  engine?: EngineOptions;
}

/** The listeners of previews: HAProxy's, or the gateway's own. */
export interface PreviewFront {
  port: number | undefined;
  tls: { port: number } | undefined;
  engine: () => Engine | undefined;
  close(): Promise<void>;
}

interface Context {
  http: HttpServer;
  grants: Grants;
  limits: GatewayLimits;
  proxies: TrustedProxies;
  log: Logger;
}

export async function startPreviewFront(
  options: PreviewFrontOptions,
  context: Context,
): Promise<PreviewFront> {
  const { log } = context;
  const { listen, tls } = options;
  let engine = await startEngine(options, context, () => {
    engine = undefined;
    log.error('previews are served without the engine until the gateway is started again');
    own = startOwn(options, context);
    own.catch((error: unknown) => log.error({ err: error }, 'previews cannot be served'));
  });
  let own = engine === undefined ? startOwn(options, context) : undefined;
  const started = await own;
  return {
    port: started?.port ?? listen?.port,
    tls: started === undefined ? tls && { port: tls.listen.port } : started.tls,
    engine: () => engine,
    close: async () => {
      await engine?.close();
      await own?.then(
        (one) => one.close(),
        () => undefined,
      );
    },
  };
}

async function startEngine(
  { engine, listen, tls, isTls }: PreviewFrontOptions,
  { http, grants, limits, proxies, log }: Context,
  onFailed: () => void,
): Promise<Engine | undefined> {
  if (engine === undefined || listen === undefined) return undefined;
  const { connections, headerBytes, headerMs, bodyBytes, idleMs, answerMs } = limits;
  try {
    return await Engine.start({
      ...engine,
      config: {
        http: listen,
        ...(tls && { tls: tls.listen }),
        isTls,
        connections,
        headerBytes,
        headerMs,
        bodyBytes,
        idleMs,
        answerMs,
        proxies: engine.proxies ?? proxies.networks,
      },
      certificate: tls,
      http,
      grants,
      log,
      onFailed,
    });
  } catch (error) {
    log.warn({ err: error }, 'previews are served without HAProxy');
    return undefined;
  }
}

async function startOwn({ listen, tls }: PreviewFrontOptions, { http, log }: Context) {
  const plain =
    listen && createServer({ noDelay: true, keepAlive: true }, (socket) => http.emit('connection', socket));
  if (plain !== undefined) {
    plain.maxConnections = http.maxConnections;
    plain.listen(listen);
    await once(plain, 'listening');
  }
  const secure = tls && (await startTlsListener(tls, http, log));
  return {
    port: plain && (plain.address() as AddressInfo).port,
    tls: secure && { port: secure.port },
    close: async () => {
      plain?.close();
      await secure?.close();
    },
  };
}
