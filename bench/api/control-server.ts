/** The control plane alone, in a process of its own, with limits that load does not reach. Forked by the api suite. */
import { CONTROL_LIMITS, ensureBootstrap, startControl } from '@releap/control';
import { openDatabase } from '@releap/database';
import { pino } from 'pino';
import type { ServerReady } from './messages.ts';

const HOUR_MS = 3_600_000;

const [databaseUrl = '', joinToken = '', connections = ''] = process.argv.slice(2);
const log = pino({ level: 'warn' }, pino.destination(2));
const control = await startControl({
  databaseUrl,
  databaseConnections: Number(connections),
  listen: { host: '127.0.0.1', port: 0 },
  tokens: { operator: () => [], gateway: () => [], join: () => [joinToken] },
  region: { id: 'local', toolboxProxyUrl: 'http://127.0.0.1:1/toolbox' },
  builtinImages: ['busybox'],
  store: { type: 'folder', path: '/nonexistent' },
  limits: {
    ...CONTROL_LIMITS,
    createQueue: 100_000_000,
    createQueueShare: 100,
    // No sandbox ever boots here, and none is to fail for it.
    deadlines: { ...CONTROL_LIMITS.deadlines, pending: HOUR_MS, assigned: HOUR_MS },
  },
  log,
});
const database = openDatabase({ url: databaseUrl, log, connections: 1 });
const { apiKey, projectId } = await ensureBootstrap(database, { keyName: 'default' });
await database.close();
if (apiKey === undefined) throw new Error('a fresh database gave no API key');
const ready: ServerReady = { url: control.url, internalUrl: control.internalUrl, apiKey, projectId };
process.send?.(ready);
process.once('disconnect', () => {
  // The database may be gone first, and there is nothing to store.
  setTimeout(() => process.exit(0), 5_000).unref();
  control.close().then(
    () => process.exit(0),
    () => process.exit(1),
  );
});
