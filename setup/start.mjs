/**
 * `npm start`: set-up, then the whole service in the foreground until Ctrl-C or SIGTERM. What the first sandbox does not need is
 * made while the service runs.
 */
import { foreground } from './foreground.mjs';
import { bundleOf } from './programs.mjs';
import { Remainder } from './remainder.mjs';
import { BUNDLES, main, NODE, setUp } from './setup.mjs';

await main(async () => {
  const { isComplete } = await setUp({ canDefer: true });
  const server = await bundleOf('packages/server/src/main.ts', BUNDLES);
  // The supervisor has little to do: a small young generation, as its processes have.
  const args = ['--max-semi-space-size=2', '--enable-source-maps', server, ...process.argv.slice(2)];
  const remainder = new Remainder();
  process.exitCode = await foreground(NODE, args, {}, () => {
    if (!isComplete) void remainder.start();
  });
  remainder.stop();
});
