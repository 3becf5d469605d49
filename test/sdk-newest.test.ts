/** The newest TypeScript SDK, by the same tests as that of the contract. Nightly, in processes of their own. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';

const FILES = ['sdk-sandboxes', 'sdk-toolbox', 'sdk-snapshots', 'sdk-code'];

test('the newest TypeScript SDK passes the tests of that of the contract', {
  skip: isNightly() || process.env['RELEAP_TEST_SDK'] !== undefined ? false : 'nightly',
}, async (t) => {
  // One after the other: each starts a service.
  for (const name of FILES)
    await t.test(name, async () => {
      // Without the context of this runner, in which a test file is no run of its own.
      const { NODE_TEST_CONTEXT: _own, ...env } = process.env;
      await promisify(execFile)(process.execPath, ['--test', join(import.meta.dirname, `${name}.test.ts`)], {
        env: { ...env, RELEAP_TEST_SDK: 'newest' },
        timeout: 30 * 60_000,
        maxBuffer: 64 * 1024 * 1024,
      });
    });
});
