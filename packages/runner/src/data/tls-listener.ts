/**
 * The data server for other machines: TLS 1.3, and both sides show certificates of the deployment's authority. Only gateways and control
 * servers are let in; which sandbox a request is for, its data token decides, as on the Unix socket.
 */
import { constants } from 'node:crypto';
import { once } from 'node:events';
import type { Server as HttpServer } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { createServer as createTlsServer, type Server as TlsServer, type TLSSocket } from 'node:tls';
import { type HostCertificate, type HostIdentity, parseHostName } from '@releap/certificates/hosts';
import type { Logger } from 'pino';
import { Budget } from '../budget/budget.ts';

export interface DataListen {
  host: string;
  /** 0 for any free one. */
  port: number;
  /** Where gateways and control servers reach it. Default: where it listens. */
  url?: string | undefined;
}

export type DataCertificate = Pick<HostCertificate, 'current' | 'onChange'>;

export interface TlsListenerOptions extends DataListen {
  /** Until there is one, connections are closed. */
  certificate: DataCertificate;
  handshakeMs?: number;
}

export interface TlsListener {
  /** `https://host:port` */
  url: string;
  /** Accepts no connections any more. Those that are open stay. */
  stop(): void;
  /** Also ends those that are open. */
  close(): void;
}

export const HANDSHAKE_MS = 10_000;
/** Connections that have not shown a certificate yet, by address: a stranger must not keep gateways out. */
const HANDSHAKES_MAX = { each: 64, all: 512 };
/** A gateway has at most 10,000 clients. */
const CONNECTIONS_MAX = 20_000;
const KEEP_ALIVE_MS = 30_000;
const CLIENTS: ReadonlySet<string> = new Set(['gateway', 'control']);

/**
 * The server side of TLS, for connections that are given to it.
 * @param onClient called for those of gateways and control servers
 */
export function dataTls(
  certificate: DataCertificate,
  handshakeMs: number,
  onClient: (socket: TLSSocket) => void,
  log: Logger,
): TlsServer {
  const tls = createTlsServer({
    ...contextOf(certificate.current),
    requestCert: true,
    rejectUnauthorized: true,
    ALPNProtocols: ['http/1.1'],
    handshakeTimeout: handshakeMs,
    allowHalfOpen: true,
  } as Parameters<typeof createTlsServer>[0]);
  certificate.onChange((identity) => tls.setSecureContext(contextOf(identity)));
  tls.on('secureConnection', (socket: TLSSocket) => {
    const name = parseHostName(socket.getPeerCertificate().subjectaltname);
    if (name !== undefined && CLIENTS.has(name.role)) {
      onClient(socket);
      return;
    }
    log.warn({ address: socket.remoteAddress, name }, 'a client is neither a gateway nor a control server');
    socket.destroy();
  });
  tls.on('tlsClientError', (error, socket) => {
    log.debug({ err: error }, 'a client is not of this deployment');
    // After a handshake that takes too long nothing else does.
    socket.destroy();
  });
  return tls;
}

/** Passes what arrives over TLS on to an HTTP server. */
export async function startTlsListener(
  { host, port, url, certificate, handshakeMs = HANDSHAKE_MS }: TlsListenerOptions,
  http: HttpServer,
  log: Logger,
): Promise<TlsListener> {
  /** Of connections without a verified client; each gives its place back. */
  const pending = new Map<string, () => void>();
  const handshakes = new Budget(HANDSHAKES_MAX);
  const open = new Set<Socket>();
  const letIn = (socket: TLSSocket): void => {
    pending.get(placeOf(socket))?.();
    http.emit('connection', socket);
  };
  const tls = dataTls(certificate, handshakeMs, letIn, log);

  const listener = createServer(
    { allowHalfOpen: true, noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS },
    (socket) => {
      const { remoteAddress: address = '' } = socket;
      if (certificate.current === undefined || handshakes.take(address, 1) === 0) {
        socket.destroy();
        return;
      }
      const place = placeOf(socket);
      const release = (): void => {
        if (pending.delete(place)) handshakes.release(address, 1);
      };
      pending.set(place, release);
      open.add(socket);
      socket.once('close', () => {
        release();
        open.delete(socket);
      });
      tls.emit('connection', socket);
    },
  );
  listener.maxConnections = CONNECTIONS_MAX;
  listener.listen({ host, port });
  await once(listener, 'listening');
  const { port: bound } = listener.address() as AddressInfo;
  return {
    url: url ?? `https://${host.includes(':') ? `[${host}]` : host}:${bound}`,
    stop: () => void listener.close(),
    close() {
      listener.close();
      for (const socket of open) socket.destroy();
    },
  };
}

const placeOf = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress} ${remotePort}`;

/** `setSecureContext` keeps nothing of what was set before. */
const contextOf = (identity: HostIdentity | undefined) => ({
  ...(identity && { key: identity.key, cert: identity.certificate, ca: identity.roots }),
  minVersion: 'TLSv1.3' as const,
  // No tickets: each connection shows a certificate that is valid now.
  secureOptions: constants.SSL_OP_NO_TICKET,
});
