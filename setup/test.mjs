/**
 * `npm test [-- --tier unit|integration|e2e] [--cpu] [pattern …]`: set-up, then every check and test. Patterns choose test
 * files by a part of their path. Ends with `N passed, N failed` alone on a line.
 */
import path from 'node:path';
import { findCommand } from './command.mjs';
import { foreground } from './foreground.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

let told = false;
await main(async () => {
  const args = process.argv.slice(2);
  const nightly = args[0] === '--nightly';
  await setUp({ forTests: true });
  const code = await foreground(
    NODE,
    [path.join(REPO, 'packages/testing/src/run/main.ts'), ...args.slice(nightly ? 1 : 0)],
    {
      PATH: `${path.dirname(NODE)}${path.delimiter}${process.env.PATH}`,
      RELEAP_TEST_GO: (await findCommand('go')) ?? '',
      ...(nightly ? { RELEAP_TEST_NIGHTLY: '1' } : {}),
    },
  );
  // It prints its results itself unless it crashed.
  told = code === 0 || code === 1;
  process.exitCode = code;
});
// A run that did not get as far as a test has not passed.
if (!told) process.stdout.write('\n0 passed, 1 failed\n');
