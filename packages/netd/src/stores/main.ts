/**
 * `stores SOCKET UID ADDRESS`: signs requests of sandboxes to their object stores anew, as the runner that connects to SOCKET says.
 * It listens for guests at ADDRESS. It is started as root, listens, and becomes user UID before it reads any input. It outlives
 * runners, and ends when it is told to, when its socket is removed or replaced, or when it has been idle for long.
 */
import manifest from '../../package.json' with { type: 'json' };
import { listenAt, serveAs } from '../helper.ts';
import { StoreService } from './service.ts';

const [path, uidText, address] = process.argv.slice(2);
const uid = Number(uidText);
if (path === undefined || !(uid > 0) || address === undefined)
  throw new Error('usage: stores SOCKET UID ADDRESS');

const stop = (): never => process.exit(0);
const service = new StoreService(manifest.version, stop);
await service.listen(address);
await listenAt(path, 0, (socket) => service.accept(socket));
serveAs(uid, path, service, stop);
