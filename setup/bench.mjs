/** `npm run bench [-- suite …]`: set-up, then the measurements. */
import path from 'node:path';
import { foreground } from './foreground.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

await main(async () => {
  await setUp({ forBench: true });
  process.exitCode = await foreground(NODE, [path.join(REPO, 'bench/main.ts'), ...process.argv.slice(2)]);
});
