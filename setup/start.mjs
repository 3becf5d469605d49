/** `npm start`: set-up, then the whole service in the foreground until Ctrl-C or SIGTERM. */
import path from 'node:path';
import { foreground } from './foreground.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

await main(async () => {
  await setUp();
  const server = path.join(REPO, 'packages/server/src/main.ts');
  process.exitCode = await foreground(NODE, [server, ...process.argv.slice(2)]);
});
