import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { makePrivateFile } from '../src/private-file.ts';

test('of several that make a private file at once one wins, and only its owner may read it', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-private-'));
  try {
    const file = path.join(folder, 'new', 'token');
    const texts = ['a', 'b', 'c', 'd'];
    const made = await Promise.all(texts.map((text) => makePrivateFile(file, text)));
    assert.deepEqual(made.filter(Boolean), [true]);
    assert.equal(await readFile(file, 'utf8'), texts[made.indexOf(true)]);
    assert.equal((await stat(file)).mode & 0o777, 0o600);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test('a file that exists is left alone, also where nothing can be written', async () => {
  assert.equal(await makePrivateFile('/proc/version', 'x'), false);
});
