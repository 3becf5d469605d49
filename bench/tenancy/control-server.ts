/** The control plane alone, in a process of its own, with the limits that operators get. Forked by the fair-share suite. */
import { CONTROL_LIMITS, startControl } from '@releap/control';
import { TOKENS } from '@releap/testing/credentials';
import { REGION } from '@releap/testing/scripted-host';
import { pino } from 'pino';
import type { ServerReady } from '../api/messages.ts';

const [databaseUrl = '', gatewayUrl = '', storeFolder = ''] = process.argv.slice(2);
const control = await startControl({
  databaseUrl,
  databaseConnections: 16,
  listen: { host: '127.0.0.1', port: 0 },
  tokens: TOKENS,
  region: { id: REGION, toolboxProxyUrl: `${gatewayUrl}/toolbox` },
  builtinImages: ['busybox'],
  store: { type: 'folder', path: storeFolder },
  limits: CONTROL_LIMITS,
  log: pino({ level: 'error' }, pino.destination(2)),
});
process.send?.({ url: control.url, internalUrl: control.internalUrl } satisfies ServerReady);
process.once('disconnect', () => {
  // The database may be gone first, and there is nothing to store.
  setTimeout(() => process.exit(0), 5_000).unref();
  control.close().then(
    () => process.exit(0),
    () => process.exit(1),
  );
});
