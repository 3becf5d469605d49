/**
 * One port for two: TLS for other machines, and plain HTTP for programs of this one, which need no authority. A connection from an
 * address of this machine to itself never leaves it, and the kernel drops packets of others that claim to come from there.
 */
import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { createServer as createTlsServer } from 'node:tls';
import type { HostCertificate, HostIdentity } from '@releap/certificates/hosts';
import type { Logger } from 'pino';

/** Until the first byte, and then until the end of the handshake. */
const FIRST_BYTE_MS = 10_000;
const HANDSHAKE_MS = 10_000;
/** Connections that have sent nothing yet. */
const SILENT_MAX = 1_000;
/** First byte of a record with a ClientHello (RFC 8446 §5.1). */
const HANDSHAKE = 0x16;
const REFUSAL = JSON.stringify({
  error: 'other machines reach this listener over TLS: use its https:// URL',
});

/** A further one at the same port, told apart by its first byte. */
export interface OtherProtocol {
  firstByte: number | undefined;
  accept: (socket: Socket) => void;
}

/**
 * Puts itself before the parser of an HTTP server that does not listen yet.
 * @returns ends connections that are not requests yet; to be called when the server is closed
 */
export async function serveTlsToOthers(
  http: Server,
  certificate: Pick<HostCertificate, 'get' | 'onChange'>,
  log: Logger,
  others?: OtherProtocol,
): Promise<() => void> {
  const parsers = http.listeners('connection');
  const parse = (socket: Socket): void => {
    for (const parser of parsers) parser.call(http, socket);
  };
  const options = { ALPNProtocols: ['http/1.1'], handshakeTimeout: HANDSHAKE_MS };
  const tls = createTlsServer({ ...contextOf(await certificate.get()), ...options });
  certificate.onChange((identity) => tls.setSecureContext(contextOf(identity)));
  tls.on('secureConnection', parse);
  tls.on('tlsClientError', (error, socket) => {
    log.debug({ err: error }, 'a handshake with the internal listener failed');
    // After a handshake that takes too long nothing else does.
    socket.destroy();
  });
  const raw = new Set<Socket>();
  let silent = 0;
  http.removeAllListeners('connection');
  http.on('connection', (socket: Socket) => {
    if (silent >= SILENT_MAX) {
      socket.destroy();
      return;
    }
    silent++;
    raw.add(socket);
    socket.once('close', () => raw.delete(socket));
    const abandon = (): void => void socket.destroy();
    const timer = setTimeout(abandon, FIRST_BYTE_MS);
    const settle = (): void => {
      clearTimeout(timer);
      silent--;
      socket.off('readable', look).off('error', abandon).off('close', settle).off('end', abandon);
    };
    const look = (): void => {
      const first = socket.read(1) as Buffer | null;
      if (first === null) return;
      settle();
      socket.unshift(first);
      if (first[0] === HANDSHAKE) tls.emit('connection', socket);
      else if (others !== undefined && first[0] === others.firstByte) others.accept(socket);
      else if (isOfThisMachine(socket)) parse(socket);
      else refuse(socket);
    };
    socket.on('readable', look).on('error', abandon).on('close', settle).on('end', abandon);
  });
  return () => {
    for (const socket of raw) socket.destroy();
  };
}

const LOOPBACK = /^((::ffff:)?127\.\d+\.\d+\.\d+|::1)$/;
const isOfThisMachine = ({ remoteAddress, localAddress }: Socket): boolean =>
  remoteAddress !== undefined && (remoteAddress === localAddress || LOOPBACK.test(remoteAddress));

function refuse(socket: Socket): void {
  socket.on('error', () => undefined);
  // It would stay open for as long as its client likes.
  socket.once('finish', () => socket.destroy());
  socket.end(
    `HTTP/1.1 426 Upgrade Required\r\nupgrade: TLS/1.3\r\nconnection: Upgrade, close\r\ncontent-type: application/json\r\n` +
      `content-length: ${REFUSAL.length}\r\n\r\n${REFUSAL}`,
  );
}

const contextOf = ({ key, certificate }: HostIdentity) => ({
  key,
  cert: certificate,
  minVersion: 'TLSv1.3' as const,
});
