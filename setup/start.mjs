/** `npm start`: set-up, then the whole service in the foreground until Ctrl-C or SIGTERM. */
import { foreground } from './foreground.mjs';
import { bundleOf } from './programs.mjs';
import { BUNDLES, main, NODE, setUp } from './setup.mjs';

await main(async () => {
  await setUp();
  const server = await bundleOf('packages/server/src/main.ts', BUNDLES);
  // The supervisor has little to do: a small young generation, as its processes have.
  const args = ['--max-semi-space-size=2', '--enable-source-maps', server, ...process.argv.slice(2)];
  process.exitCode = await foreground(NODE, args);
});
