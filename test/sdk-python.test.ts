/** The Python SDK of the same version, whose models are strict. Nightly: its installation takes a minute. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { REPO, Service } from '@releap/testing/service';

const VENV = join(REPO, 'build/test-clients/python');
const SDK = 'daytona==0.190.1';
const MINUTES = 60_000;

const run = promisify(execFile);

test('the Python SDK creates, uses, stops and deletes a sandbox', {
  skip: isNightly() || process.env['RELEAP_TEST_PYTHON'] !== undefined ? false : 'nightly',
}, async () => {
  await run('virtualenv', [VENV], { timeout: 5 * MINUTES });
  const pip = ['install', '--quiet', '--disable-pip-version-check', SDK];
  await run(join(VENV, 'bin/pip'), pip, { timeout: 10 * MINUTES });
  await using service = await Service.start({ RELEAP_PREVIEW_DOMAIN: 'localhost' });
  const { api_key: key, compat_url: url } = service.bootstrap;
  const script = join(import.meta.dirname, 'support/sdk.py');
  const { stdout } = await run(join(VENV, 'bin/python'), [script, key, url], {
    timeout: 10 * MINUTES,
    env: { ...process.env, NO_PROXY: '127.0.0.1,localhost' },
  });
  assert.equal(stdout.trim(), 'all passed');
});
