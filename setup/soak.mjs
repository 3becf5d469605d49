/** `npm run soak [-- PAUSES STOPS]`: set-up, then one sandbox through its life cycle repeatedly. */
import path from 'node:path';
import { foreground } from './foreground.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

await main(async () => {
  await setUp({});
  process.exitCode = await foreground(NODE, [
    path.join(REPO, 'test/soak/lifecycle-soak.ts'),
    ...process.argv.slice(2),
  ]);
});
