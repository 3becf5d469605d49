import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:tls';
import type { Logger } from 'pino';

/** Certificates are renewed while the gateway runs. */
const RELOAD_MS = 60_000;
const HANDSHAKE_MS = 15_000;

export interface TlsOptions {
  listen: { host: string; port: number };
  /** In PEM form, the certificate with its chain. Called again every minute. */
  load: () => Promise<{ certificate: string; key: string }>;
  /** Calls a listener when there is another certificate, before the minute is over. @returns removes it */
  onChange?: (listener: () => void) => () => void;
}

export interface TlsListener {
  port: number;
  close(): Promise<void>;
}

/** Passes what arrives over TLS on to an HTTP server. @throws when the certificate is not usable */
export async function startTlsListener(
  { listen, load, onChange }: TlsOptions,
  http: Server,
  log: Logger,
): Promise<TlsListener> {
  let { certificate: cert, key } = await load();
  const server = createServer(
    {
      cert,
      key,
      ALPNProtocols: ['http/1.1'],
      handshakeTimeout: HANDSHAKE_MS,
      noDelay: true,
      keepAlive: true,
    },
    (socket) => http.emit('connection', socket),
  );
  // After a handshake that takes too long nothing else does.
  server.on('tlsClientError', (_error, socket) => socket.destroy());
  server.maxConnections = http.maxConnections;
  const reload = async (): Promise<void> => {
    const next = await load();
    if (next.certificate === cert && next.key === key) return;
    server.setSecureContext({ cert: next.certificate, key: next.key });
    ({ certificate: cert, key } = next);
    log.info('the certificate of previews was loaded again');
  };
  const tryReload = (): void => {
    reload().catch((error: unknown) => log.warn({ err: error }, 'the certificate of previews is not usable'));
  };
  const timer = setInterval(tryReload, RELOAD_MS);
  const removeListener = onChange?.(tryReload);
  server.listen(listen);
  try {
    await once(server, 'listening');
  } catch (error) {
    clearInterval(timer);
    removeListener?.();
    throw error;
  }
  return {
    port: (server.address() as AddressInfo).port,
    close: async () => {
      clearInterval(timer);
      removeListener?.();
      server.close();
    },
  };
}
