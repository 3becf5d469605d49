import assert from 'node:assert/strict';
import { truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { it } from 'node:test';
import { runnerId } from '../src/runner-id.ts';
import { temporaryFolder } from '@releap/testing/oci';

it("a runner's id is made once, and again when a power failure has left the file empty", async () => {
  await using folder = await temporaryFolder();
  const path = join(folder.path, 'runner', 'id');
  const id = await runnerId(path);
  assert.equal(await runnerId(path), id);
  await truncate(path);
  const next = await runnerId(path);
  assert.notEqual(next, id);
  assert.equal(await runnerId(path), next);
  await writeFile(path, 'something else');
  await assert.rejects(runnerId(path), /does not hold a runner id/);
});
