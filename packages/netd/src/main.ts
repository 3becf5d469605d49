/**
 * `netd SOCKET UID EGRESS VERSION`: serves DNS, port forwards and the egress proxy (descriptor EGRESS listens for it) of the sandboxes of one host, as the runner that connects to the socket
 * says. It is started as root, listens, and becomes user UID before it reads any input. It outlives runners,
 * and ends when it is told to, when its socket is removed or replaced, or when it has been idle for long. VERSION is what it was started
 * from: a runner of another version replaces it.
 */
import { listenAt, serveAs } from './helper.ts';
import { RunnerLink } from './runner-link.ts';

const [path, uidText, egressText, version] = process.argv.slice(2);
const uid = Number(uidText);
const egress = Number(egressText);
if (
  path === undefined ||
  !Number.isInteger(uid) ||
  uid <= 0 ||
  !Number.isInteger(egress) ||
  version === undefined
)
  throw new Error('usage: netd SOCKET UID EGRESS VERSION');

const stop = (): never => process.exit(0);
const link = await RunnerLink.open(version, egress, stop);
await listenAt(path, 0, (socket) => link.accept(socket));
serveAs(uid, path, link, stop);
