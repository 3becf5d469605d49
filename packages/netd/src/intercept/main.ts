/**
 * `intercept SOCKET GUEST_SOCKET UID NETD_UID`: replaces placeholders of secrets in connections that netd hands over at
 * GUEST_SOCKET, as the runner that connects to SOCKET says. It is started as root, listens, and becomes user UID before
 * it reads any input. It outlives runners, and ends when it is told to, when its socket is removed or replaced, or when it has
 * been idle for long.
 */
import manifest from '../../package.json' with { type: 'json' };
import { listenAt, serveAs } from '../helper.ts';
import { InterceptService } from './service.ts';

const [path, guestPath, uidText, netdUidText] = process.argv.slice(2);
const [uid, netdUid] = [Number(uidText), Number(netdUidText)];
if (path === undefined || guestPath === undefined || !(uid > 0) || !(netdUid > 0))
  throw new Error('usage: intercept SOCKET GUEST_SOCKET UID NETD_UID');

const stop = (): never => process.exit(0);
const service = new InterceptService(manifest.version, stop);
await listenAt(guestPath, netdUid, (socket) => service.acceptGuest(socket));
await listenAt(path, 0, (socket) => service.accept(socket));
serveAs(uid, path, service, stop);
