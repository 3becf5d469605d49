import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { temporaryFolder } from '@releap/testing/temporary-folder';

const run = promisify(execFile);
const MAIN = join(import.meta.dirname, '../bench/main.ts');
const DEADLINE_MS = 900_000;

let folder: string;
before(async () => {
  folder = await temporaryFolder('releap-bench-');
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

/** No figure is checked: only that each measured path runs to its end. What is measured has tests of its own in each run. */
const nightly = { timeout: DEADLINE_MS, skip: isNightly() ? false : 'only in the nightly run' };

it('the measurement of a create runs to its end, its floor included', nightly, async () => {
  const { stdout } = await run(process.execPath, [MAIN, 'create-exec', '--quick', '--results', folder], {
    timeout: DEADLINE_MS,
    maxBuffer: 64 * 1024 * 1024,
  });
  assert.match(stdout, /From `POST \/vms` to the first answered command/);
  const results = JSON.parse(await readFile(join(folder, 'latest.json'), 'utf8')) as object;
  assert.match(JSON.stringify(results), /the same template restored by hand/);
});

it('the measurement of images runs to its end', nightly, async () => {
  const { stdout } = await run(process.execPath, [MAIN, 'images', '--quick', '--results', folder], {
    timeout: DEADLINE_MS,
    maxBuffer: 64 * 1024 * 1024,
  });
  assert.match(stdout, /skopeo copy.*umoci unpack.*mksquashfs/);
  assert.match(stdout, /a second image with the same layers/);
  assert.match(stdout, /create from an image/i);
});
