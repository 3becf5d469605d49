import type { Duplex } from 'node:stream';
import { ApiError } from '@releap/contract';
import type { Logger } from 'pino';
import type { Connection } from 'ssh2';
import type { GrantLease, Grants } from '../control/grants.ts';
import { Congestion } from './channel-writer.ts';
import { isRefusal } from './authentication.ts';
import { channelOf, onEndOfWrite } from './end-of-write.ts';
import { SshForward } from './forward.ts';
import type { Login } from './login.ts';
import { SshSession, type SessionContext } from './session.ts';
import type { SshLimits } from './ssh-limits.ts';

/** How often the buffers of a connection are looked at while they are too full, in milliseconds. */
const FULL_POLL_MS = 50;

export interface ConnectionOptions {
  client: Connection;
  /** The transport below it. */
  socket: Duplex;
  login: Login;
  grants: Pick<Grants, 'lease'>;
  limits: SshLimits;
  log: Logger;
}

/** An authenticated connection: opens channels, bounds them, and ends all when the credential is revoked. */
export function serveConnection(options: ConnectionOptions): void {
  const { client, socket, login, grants, limits, log } = options;
  const closed = new AbortController();
  const channels = new Set<SshSession | SshForward>();
  let sessions = 0;
  let forwards = 0;

  const close = (): void => {
    if (closed.signal.aborted) return;
    client.end();
    socket.destroy();
  };
  // One grant stays leased as long as the connection is open, so that a revocation also reaches it while it is idle.
  let kept: GrantLease | undefined;
  const lease = async (): Promise<GrantLease> => {
    const granted = await grants.lease(login.target, login.token).catch((error: unknown) => {
      if (error instanceof ApiError && isRefusal(error)) close();
      throw error;
    });
    if (kept === undefined && !closed.signal.aborted) {
      kept = granted;
      granted.revoked.addEventListener('abort', close, { once: true, signal: closed.signal });
      return await lease();
    }
    if (granted.revoked.aborted) close();
    return granted;
  };
  const context: SessionContext = {
    lease,
    limits,
    congestion: new Congestion(socket, limits.outboundBytes),
    closed: closed.signal,
  };
  const idle = setTimeout(() => {
    if (kept === undefined && channels.size === 0) close();
  }, limits.loginMs);
  // The sandbox may not run now: then each channel says so, and there is no grant that could be revoked.
  lease().then(
    (granted) => granted[Symbol.dispose](),
    () => undefined,
  );

  const byChannel = new Map<number, SshSession>();
  client.on('session', (accept, reject) => {
    if (sessions >= limits.sessions) return reject();
    sessions++;
    const accepted = accept();
    const channel = channelOf(accepted);
    const session = new SshSession(accepted, context, () => {
      sessions--;
      channels.delete(session);
      if (channel !== undefined) byChannel.delete(channel);
    });
    channels.add(session);
    if (channel !== undefined) byChannel.set(channel, session);
  });
  onEndOfWrite(client, (channel) => byChannel.get(channel)?.discardOutput());
  const forward = (
    to: ConstructorParameters<typeof SshForward>[0],
    accept: ConstructorParameters<typeof SshForward>[1],
    reject: () => void,
  ): void => {
    if (forwards >= limits.forwards) return reject();
    forwards++;
    const opened = new SshForward(to, accept, reject, context, () => {
      forwards--;
      channels.delete(opened);
    });
    channels.add(opened);
  };
  client.on('tcpip', (accept, reject, { destIP, destPort }) => {
    if (destPort < 1 || destPort > 65_535 || destIP === '' || destIP.length > 255) return reject();
    forward({ host: destIP, port: destPort }, accept, reject);
  });
  client.on('openssh.streamlocal', (accept, reject, { socketPath }) => {
    if (!socketPath.startsWith('/') || socketPath.length > 107 || socketPath.includes('\0')) return reject();
    forward({ socketPath }, accept, reject);
  });
  // `-R`, agent and X11 forwarding are not listened to: ssh2 refuses them.

  // ssh2 does not enforce the windows that it grants, and many channels together may hold much.
  let full: NodeJS.Timeout | undefined;
  const inbound = (): number => channels.values().reduce((sum, { inbound: bytes }) => sum + bytes, 0);
  const checkBuffers = (): void => {
    full = undefined;
    if (closed.signal.aborted) return;
    if (inbound() <= limits.inboundBytes) return void socket.resume();
    socket.pause();
    full = setTimeout(checkBuffers, FULL_POLL_MS);
  };
  socket.on('data', () => {
    if (full === undefined && inbound() > limits.inboundBytes) checkBuffers();
  });

  client.on('close', () => {
    closed.abort();
    clearTimeout(full);
    clearTimeout(idle);
    kept?.[Symbol.dispose]();
    log.debug({ sandbox: login.target.sandbox }, 'an SSH connection ended');
  });
}
