/** A control server in a process of its own, to be killed. */
import { startControl } from '../../src/index.ts';
import { TOKENS } from '@releap/testing/credentials';
import { quiet } from '@releap/testing/world';

const { TEST_DATABASE_URL, TEST_REGION, TEST_PORT, TEST_INTERNAL_PORT } = process.env;
const control = await startControl({
  databaseUrl: TEST_DATABASE_URL ?? '',
  listen: { host: '127.0.0.1', port: Number(TEST_PORT) },
  internalListen: { host: '127.0.0.1', port: Number(TEST_INTERNAL_PORT) },
  tokens: TOKENS,
  region: { id: TEST_REGION ?? '' },
  builtinImages: ['busybox'],
  store: { type: 'folder', path: '/nonexistent' },
  limits: { sweepMs: 100 },
  log: quiet,
});
process.on('SIGTERM', () => void control.close().then(() => process.disconnect()));
// The parent is gone: no process is left to stop this one.
process.on('disconnect', () => process.exit());
process.send?.({ url: control.url, internalUrl: control.internalUrl });
