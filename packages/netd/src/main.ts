/**
 * `netd SOCKET UID EGRESS`: serves DNS, port forwards and the egress proxy (descriptor EGRESS listens for it) of the sandboxes of one host, as the runner that connects to the socket
 * says. It is started as root, listens, and becomes user UID before it reads any input. It outlives runners,
 * and ends when it is told to, when its socket is removed or replaced, or when it has been idle for long.
 */
import { once } from 'node:events';
import { chmodSync, renameSync, watch } from 'node:fs';
import { createServer } from 'node:net';
import { setPriority } from 'node:os';
import { basename, dirname } from 'node:path';
import manifest from '../package.json' with { type: 'json' };
import { becomeUser } from './become-user.ts';
import { RunnerLink } from './runner-link.ts';

/** What guests can keep busy goes behind what answers for the host. */
const PRIORITY = 5;
const IDLE_MAX_MS = 60_000;

const [path, uidText, egressText] = process.argv.slice(2);
const uid = Number(uidText);
const egress = Number(egressText);
if (path === undefined || !Number.isInteger(uid) || uid <= 0 || !Number.isInteger(egress))
  throw new Error('usage: netd SOCKET UID EGRESS');

const stop = (): never => process.exit(0);
const link = await RunnerLink.open(manifest.version, egress, stop);
const server = createServer((socket) => link.accept(socket));
server.listen(`${path}.new`);
await once(server, 'listening');
chmodSync(`${path}.new`, 0o600);
// A netd before this one that still runs sees its socket replaced.
renameSync(`${path}.new`, path);
watch(dirname(path), (event, name) => {
  if (event === 'rename' && name === basename(path)) stop();
});
setPriority(PRIORITY);
becomeUser(uid);

setInterval(() => {
  if (link.idleMs > IDLE_MAX_MS) stop();
}, 1_000);
process.on('SIGTERM', stop);
