import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { storeMountProgram } from '@releap/contract/store-mount-program';
import { StoreProgram } from '../src/host/store-program.ts';

/** A build folder as set-up leaves it before the first start, and a folder for the programs of the service. */
async function installation(t: TestContext) {
  const folder = await mkdtemp(join(tmpdir(), 'releap-store-program-'));
  t.after(() => rm(folder, { recursive: true }));
  const [build, programs] = [join(folder, 'build'), join(folder, 'programs')];
  const source = storeMountProgram(build);
  await mkdir(dirname(source), { recursive: true });
  /** As set-up does: complete from the first moment. */
  const make = async (text: string): Promise<void> => {
    await writeFile(`${source}.new`, text);
    await rename(`${source}.new`, source);
  };
  return { build, programs, make };
}

test('the program that set-up makes after the start is announced once, and refused before with what to do', async (t) => {
  const { build, programs, make } = await installation(t);
  const program = await StoreProgram.open(build, programs);
  t.after(() => program.close());
  assert.equal(program.isMade, false);
  await assert.rejects(program.find(), /not made yet: set-up makes it after the first start.*try again/);
  const made = Promise.withResolvers<void>();
  program.watch(made.resolve, 20);
  await make('first');
  await made.promise;
  assert.equal(program.isMade, true);
  const { digest, bytes, path } = await program.find();
  assert.deepEqual([digest.length, bytes, await readFile(path, 'utf8')], [64, 5, 'first']);
});

test('a service sends the program that was there at its start, also when set-up replaces it', async (t) => {
  const { build, programs, make } = await installation(t);
  await make('first');
  const program = await StoreProgram.open(build, programs);
  program.watch(() => assert.fail('it is there'), 20);
  assert.equal(program.isMade, true);
  await make('second');
  assert.equal(await readFile((await program.find()).path, 'utf8'), 'first');
});
