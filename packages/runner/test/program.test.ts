/** The service's programs in few files. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, readdir, rename, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { currentBundles } from '../src/process/program.ts';

const SETUP = new URL('../../../setup/programs.mjs', import.meta.url).href;
const SOURCE = 'packages/one/src/main.ts';

test('a program is bundled once, knows where its source is, and runs from that when it has changed', async () => {
  const { bundlePrograms } = (await import(SETUP)) as {
    bundlePrograms: (repository: string, output: string, sources: readonly string[]) => Promise<void>;
  };
  const repository = await temporaryFolder('releap-programs-');
  const output = path.join(repository, 'build/programs');
  const bundle = (): Promise<void> => bundlePrograms(repository, output, [SOURCE]);
  const bundled = (at = repository): string | undefined => currentBundles(`${at}/`)[SOURCE];
  const write = async (name: string, text: string): Promise<void> => {
    await mkdir(path.dirname(path.join(repository, name)), { recursive: true });
    await writeFile(path.join(repository, name), text);
  };
  await write('package-lock.json', '{}');
  await write('setup/programs.mjs', '');
  await write('packages/one/src/part.ts', 'export const where: string = import.meta.filename;\n');
  await write(SOURCE, "import { where } from './part.ts';\n\nthrow new Error(`in ${where}`);\n");
  assert.equal(bundled(), undefined);
  await bundle();
  const first = bundled() ?? '';
  const run = (file: string): string => {
    const options = { encoding: 'utf8', stdio: 'pipe' } as const;
    try {
      return execFileSync(process.execPath, ['--enable-source-maps', path.resolve(output, file)], options);
    } catch (error) {
      return (error as { stderr: string }).stderr;
    }
  };
  const shown = run(first);
  assert.ok(shown.includes(`in ${repository}/packages/one/src/part.ts`), shown);
  assert.ok(shown.includes(`${SOURCE}:3`), shown);
  await bundle();
  assert.equal(bundled(), first);

  await write('packages/one/src/part.ts', "export const where: string = 'elsewhere';\n");
  assert.equal(bundled(), undefined);
  await bundle();
  const second = bundled() ?? '';
  assert.match(run(second), /in elsewhere/);
  // A process that was started before may still load parts of the first.
  assert.match(run(first), /in .*part\.ts/);
  await write('packages/one/src/part.ts', "export const where: string = 'nowhere';\n");
  await bundle();
  const folders = (await readdir(output)).filter((name) => name !== 'programs.json');
  assert.deepEqual(new Set(folders), new Set([second, bundled()].map((file) => file?.split('/')[0])));

  await write('packages/one/src/part.ts', 'export const where: string = import.meta.dirname;\n');
  await bundle();
  const moved = `${repository}-moved`;
  await rename(repository, moved);
  const file = path.join(moved, 'build/programs', bundled(moved) ?? '-');
  assert.ok(run(file).includes(`in ${moved}/packages/one/src\n`), run(file));
});
