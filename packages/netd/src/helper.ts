/** What netd and the interceptor have in common as processes: they listen, become a user, and end when nothing needs them. */
import { once } from 'node:events';
import { chmodSync, chownSync, renameSync, watch } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { getPriority, setPriority } from 'node:os';
import { basename, dirname } from 'node:path';
import { dropPrivileges } from './drop-privileges.ts';

/** What guests can keep busy goes behind what answers for the host. */
const PRIORITY = 5;
const IDLE_MAX_MS = 60_000;

/** Listens at a Unix socket to which only this user and root may connect. A process before this one sees its socket replaced. */
export async function listenAt(path: string, user: number, accept: (socket: Socket) => void): Promise<void> {
  const server = createServer({ allowHalfOpen: true }, accept);
  server.listen(`${path}.new`);
  await once(server, 'listening');
  chmodSync(`${path}.new`, 0o600);
  if (user !== process.getuid?.()) chownSync(`${path}.new`, user, user);
  renameSync(`${path}.new`, path);
}

/** What decides when a helper ends by itself. */
export interface Needed {
  /** How long there has been neither a runner nor anything to serve, in milliseconds. */
  readonly idleMs: number;
  /** Another process has its place, and it serves only what it has; how many of those are left. Undefined: it has its place. */
  readonly draining?: number | undefined;
}

/**
 * Becomes user `uid` for good. The process ends when its socket is removed or replaced, on SIGTERM, or when it has been idle
 * for long.
 * @param path of the socket that the runner connects to
 */
export function serveAs(uid: number, path: string, needed: Needed, stop: () => never): void {
  watch(dirname(path), (event, name) => {
    if (event === 'rename' && name === basename(path) && needed.draining === undefined) stop();
  });
  // Not where the service itself has a lower one: only root of the host may raise it.
  if (getPriority() < PRIORITY) setPriority(PRIORITY);
  dropPrivileges(uid);
  setInterval(() => {
    if (needed.draining === 0 || (needed.draining === undefined && needed.idleMs > IDLE_MAX_MS)) stop();
  }, 1_000);
  process.on('SIGTERM', stop);
}
