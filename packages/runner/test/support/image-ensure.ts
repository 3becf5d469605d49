/** `node image-ensure.ts CACHE REF`: makes an image and says each phase on a line; to be killed. */
import { pino } from 'pino';
import { ImageStore } from '../../src/image/image-store.ts';

const [, , cacheDir = '', ref = ''] = process.argv;
const store = new ImageStore({ cacheDir, log: pino({ level: 'silent' }), privateHosts: ['loopback'] });
await store.ensure(
  { type: 'registry', ref },
  { onProgress: ({ phase }) => process.stdout.write(`${phase}\n`) },
);
await store.close();
