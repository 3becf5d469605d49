/** `npm start`: set-up, then the whole service in the foreground until Ctrl-C or SIGTERM. */
import path from 'node:path';
import { foreground } from './foreground.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

await main(async () => {
  await setUp();
  const server = path.join(REPO, 'packages/server/src/main.ts');
  // The supervisor has little to do: a small young generation, as its processes have.
  const args = ['--max-semi-space-size=2', server, ...process.argv.slice(2)];
  process.exitCode = await foreground(NODE, args);
});
