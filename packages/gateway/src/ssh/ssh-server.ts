import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import ssh2, { type Algorithms, type Connection } from 'ssh2';
import type { Grants } from '../control/grants.ts';
import { authenticate } from './authentication.ts';
import { serveConnection } from './connection.ts';
import type { Login } from './login.ts';
import { type HostKey, readHostKey } from './host-key.ts';
import { subjectOf } from '../http/event-counter.ts';
import { LoginLimiter } from './login-limiter.ts';
import { SSH_LIMITS, type SshLimits } from './ssh-limits.ts';

/** What a client may send before it is authenticated. Key exchange and login take a few kilobytes. */
const LOGIN_MAX_BYTES = 128 * 1024;
/** After this side has ended a connection, in milliseconds. */
const CLOSE_MS = 2_000;

/**
 * Elliptic curves alone: finite field groups cost this process up to a second a handshake. No compression: the client
 * could make a few bytes very many.
 */
const ALGORITHMS: Algorithms = {
  kex: [
    'curve25519-sha256',
    'curve25519-sha256@libssh.org',
    'ecdh-sha2-nistp256',
    'ecdh-sha2-nistp384',
    'ecdh-sha2-nistp521',
  ],
  cipher: ['aes128-gcm@openssh.com', 'aes256-gcm@openssh.com', 'aes256-ctr', 'aes192-ctr', 'aes128-ctr'],
  hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com', 'hmac-sha2-256', 'hmac-sha2-512'],
  compress: ['none'],
};

export interface SshServerOptions {
  listen: {
    host: string;
    /** 0 for any free one. */
    port: number;
  };
  /** Private keys, in OpenSSH's or PEM form. */
  hostKeys: readonly string[];
  grants: Pick<Grants, 'lease'>;
  limits?: Partial<SshLimits>;
  log: Logger;
}

export interface SshServer {
  port: number;
  hostKeys: readonly HostKey[];
  /** Serves a connection that was authenticated by other means, over any transport. */
  serve(transport: Duplex, address: string, login: Login): void;
  /** Open ones, over any transport. */
  connections(): number;
  close(): Promise<void>;
}

/** Listens for SSH clients. Each connection leads to one sandbox. */
export async function startSshServer(options: SshServerOptions): Promise<SshServer> {
  const { listen, grants, log } = options;
  const limits = { ...SSH_LIMITS, ...options.limits };
  const hostKeys = options.hostKeys.map(readHostKey);
  const limiter = new LoginLimiter(limits);
  const open = new Set<Duplex>();
  const pending = new Map<string, number>();
  const bySandbox = new Map<string, number>();
  let pendingAll = 0;

  /** @param known the client's login, if it is authenticated already */
  const accept = (socket: Duplex, address: string, known?: Login): void => {
    const subject = subjectOf(address);
    const waiting = pending.get(subject) ?? 0;
    socket.on('error', () => socket.destroy());
    if (
      open.size >= limits.connections ||
      pendingAll >= limits.pending ||
      waiting >= limits.pendingPerAddress ||
      (known === undefined && limiter.isAddressBlocked(address))
    ) {
      socket.destroy();
      return;
    }
    open.add(socket);
    pendingAll++;
    pending.set(subject, waiting + 1);
    let isPending = true;
    const notPending = (): void => {
      if (!isPending) return;
      isPending = false;
      pendingAll--;
      clearTimeout(deadline);
      socket.off('data', countBytes);
      const rest = (pending.get(subject) ?? 1) - 1;
      if (rest > 0) pending.set(subject, rest);
      else pending.delete(subject);
    };
    const deadline = setTimeout(() => socket.destroy(), limits.loginMs);
    let bytes = 0;
    const countBytes = (chunk: Buffer): void => {
      bytes += chunk.length;
      if (bytes > LOGIN_MAX_BYTES) socket.destroy();
    };
    socket.on('data', countBytes);
    // A client that never closes its end would keep the connection for good.
    socket.once('finish', () => setTimeout(() => socket.destroy(), CLOSE_MS).unref());
    socket.once('close', () => {
      open.delete(socket);
      notPending();
    });

    const server = new ssh2.Server(
      {
        hostKeys: [...options.hostKeys],
        // OpenSSH's client sends its own extensions (that it reads no more output) to servers of this name alone.
        ident: 'OpenSSH_Releap',
        algorithms: ALGORITHMS,
        keepaliveInterval: limits.keepAliveMs,
        keepaliveCountMax: limits.keepAliveMax,
      },
      (client: Connection) => {
        client.on('error', (error) => {
          log.debug({ err: error, address }, 'an SSH connection failed');
          socket.destroy();
        });
        let login: Login | undefined;
        const onLogin = (made: Login): void => {
          login = made;
        };
        if (known === undefined) authenticate(client, { address, grants, limiter, limits, log }, onLogin);
        else
          client.on('authentication', (context) => {
            onLogin(known);
            context.accept();
          });
        client.on('ready', () => {
          notPending();
          if (login === undefined || !enter(login, socket)) {
            client.end();
            return;
          }
          log.info({ address, sandbox: login.target.sandbox }, 'an SSH client has logged in');
          serveConnection({ client, socket, login, grants, limits, log });
        });
      },
    );
    // `injectSocket` names a net.Socket, and uses what every duplex stream has.
    server.injectSocket(socket as Socket);
  };

  /** Counts the connections of a sandbox; false when it has too many. */
  const enter = ({ target: { sandbox = '' } }: Login, socket: Duplex): boolean => {
    const count = bySandbox.get(sandbox) ?? 0;
    if (count >= limits.connectionsPerSandbox) return false;
    bySandbox.set(sandbox, count + 1);
    socket.once('close', () => {
      const rest = (bySandbox.get(sandbox) ?? 1) - 1;
      if (rest > 0) bySandbox.set(sandbox, rest);
      else bySandbox.delete(sandbox);
    });
    return true;
  };

  const server = createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: 30_000 }, (socket) =>
    accept(socket, socket.remoteAddress ?? ''),
  );
  server.maxConnections = limits.connections;
  server.listen({ host: listen.host, port: listen.port });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  log.info({ host: listen.host, port, hostKeys: hostKeys.map((key) => key.fingerprint) }, 'SSH listens');

  return {
    port,
    hostKeys,
    serve: accept,
    connections: () => open.size,
    close: async () => {
      const closed = once(server, 'close');
      server.close();
      for (const socket of open) socket.destroy();
      await closed;
    },
  };
}
