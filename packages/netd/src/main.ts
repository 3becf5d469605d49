/**
 * `netd SOCKET UID EGRESS`: serves DNS, port forwards and the egress proxy (descriptor EGRESS listens for it) of the sandboxes of one host, as the runner that connects to the socket
 * says. It is started as root, listens, and becomes user UID before it reads any input. It outlives runners,
 * and ends when it is told to, when its socket is removed or replaced, or when it has been idle for long.
 */
import manifest from '../package.json' with { type: 'json' };
import { listenAt, serveAs } from './helper.ts';
import { RunnerLink } from './runner-link.ts';

const [path, uidText, egressText] = process.argv.slice(2);
const uid = Number(uidText);
const egress = Number(egressText);
if (path === undefined || !Number.isInteger(uid) || uid <= 0 || !Number.isInteger(egress))
  throw new Error('usage: netd SOCKET UID EGRESS');

const stop = (): never => process.exit(0);
const link = await RunnerLink.open(manifest.version, egress, stop);
await listenAt(path, 0, (socket) => link.accept(socket));
serveAs(uid, path, () => link.idleMs, stop);
