/**
 * `intercept SOCKET GUEST_SOCKET UID NETD_UID`: replaces placeholders of secrets in connections that netd hands over at
 * GUEST_SOCKET, as the runner that connects to SOCKET says. It is started as root, listens, and becomes user UID before
 * it reads any input. It outlives runners, and ends when it is told to, when its socket is removed or replaced, or when it has
 * been idle for long.
 */
import { once } from 'node:events';
import { chmodSync, chownSync, renameSync, watch } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { setPriority } from 'node:os';
import { basename, dirname } from 'node:path';
import manifest from '../../package.json' with { type: 'json' };
import { becomeUser } from '../become-user.ts';
import { InterceptService } from './service.ts';

/** What guests can keep busy goes behind what answers for the host. */
const PRIORITY = 5;
const IDLE_MAX_MS = 60_000;

const [path, guestPath, uidText, netdUidText] = process.argv.slice(2);
const [uid, netdUid] = [Number(uidText), Number(netdUidText)];
if (path === undefined || guestPath === undefined || !(uid > 0) || !(netdUid > 0))
  throw new Error('usage: intercept SOCKET GUEST_SOCKET UID NETD_UID');

const stop = (): never => process.exit(0);
const service = new InterceptService(manifest.version, stop);
await listen(guestPath, netdUid, (socket) => service.acceptGuest(socket));
await listen(path, 0, (socket) => service.accept(socket));
watch(dirname(path), (event, name) => {
  if (event === 'rename' && name === basename(path)) stop();
});
setPriority(PRIORITY);
becomeUser(uid);

setInterval(() => {
  if (service.idleMs > IDLE_MAX_MS) stop();
}, 1_000);
process.on('SIGTERM', stop);

/** Only this user and root may connect. One before this one sees its socket replaced. */
async function listen(at: string, user: number, accept: (socket: Socket) => void): Promise<void> {
  const server = createServer({ allowHalfOpen: true }, accept);
  server.listen(`${at}.new`);
  await once(server, 'listening');
  chmodSync(`${at}.new`, 0o600);
  if (user !== process.getuid?.()) chownSync(`${at}.new`, user, user);
  renameSync(`${at}.new`, at);
}
