/** The Python SDKs, whose models are strict: that of the contract, and the newest. Nightly: an installation takes a minute. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { REPO, Service } from '@releap/testing/service';

const VERSIONS = ['0.190.1', '0.226.1'];
const MINUTES = 60_000;

const run = promisify(execFile);

test('each Python SDK creates, uses, stops and deletes a sandbox', {
  skip: isNightly() || process.env['RELEAP_TEST_PYTHON'] !== undefined ? false : 'nightly',
}, async (t) => {
  await using service = await Service.start({ RELEAP_PREVIEW_DOMAIN: 'localhost' });
  const { api_key: key, compat_url: url } = service.bootstrap;
  const script = join(import.meta.dirname, 'support/sdk.py');
  for (const version of VERSIONS)
    await t.test(version, async () => {
      const folder = join(REPO, 'build/test-clients', `python-${version}`);
      await run('virtualenv', [folder], { timeout: 5 * MINUTES });
      const lock = join(REPO, 'setup/test-clients', `python-${version}.txt`);
      const pip = ['install', '--quiet', '--disable-pip-version-check', '--require-hashes', '-r', lock];
      await run(join(folder, 'bin/pip'), pip, { timeout: 10 * MINUTES });
      const { stdout } = await run(join(folder, 'bin/python'), [script, key, url, version], {
        timeout: 10 * MINUTES,
        env: { ...process.env, NO_PROXY: '127.0.0.1,localhost' },
      });
      assert.equal(stdout.trim(), 'all passed');
    });
});
