import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { pinnedProgram } from '../src/host/pinned-program.ts';

let dir: string;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-pinned-'));
});
after(() => rm(dir, { recursive: true, force: true }));

test('a service uses the program that was there at its start, and removes those of earlier services', async () => {
  const [source, folder] = [join(dir, 'program'), join(dir, 'programs')];
  const install = async (text: string): Promise<void> => {
    await writeFile(`${source}.new`, `#!/bin/sh\necho ${text}\n`, { mode: 0o755 });
    await rename(`${source}.new`, source);
  };
  await mkdir(join(folder, 'of an earlier service'), { recursive: true });
  await install('first');
  const pinned = await pinnedProgram(source, folder);
  await install('second');
  // Another process of the same service asks.
  assert.equal(await pinnedProgram(source, folder), pinned);
  assert.equal((await promisify(execFile)(pinned)).stdout, 'first\n');
  assert.match(await readFile(source, 'utf8'), /second/);
  assert.equal((await readdir(folder)).length, 1);
});
