/** An installation of an earlier version beside this checkout, for tests of upgrades. */
import { execFile } from 'node:child_process';
import { copyFile, link, mkdir, readdir, readlink, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { currentBundles } from '@releap/runner/program';
import { REPO } from '@releap/testing/service';

const run = promisify(execFile);
const MAIN = 'packages/server/src/main.ts';
const PINNED = '6c386d53';
/** Another commit may be the previous version: of a release it is the one of its tag. */
export const PREVIOUS = process.env['RELEAP_TEST_PREVIOUS'] ?? PINNED;
/** Its runners cut what they answer when they stop, and what connects while they start. To be removed with a later commit. */
export const CUTS_REQUESTS = PREVIOUS === PINNED;

export interface Installation {
  name: 'this' | 'previous';
  /** The program of every role. */
  main: string;
}

/** Of a shallow clone it is not there. @returns why it cannot be made */
export async function whyNoPrevious(): Promise<string | undefined> {
  const found = await run('git', ['-C', REPO, 'cat-file', '-e', `${PREVIOUS}^{commit}`]).catch(
    (error: unknown) => error,
  );
  return found instanceof Error ? `commit ${PREVIOUS} is not in this clone` : undefined;
}

/** This checkout, with the bundles that set-up has made of it. */
export const THIS: Installation = { name: 'this', main: mainOf(REPO) };

/**
 * Unpacks the previous version with bundles of its own. It uses the libraries of this checkout, and what set-up has unpacked and
 * built (QEMU, kernel, programs in Go).
 * @param folder absolute; made, and removed by the caller
 */
export async function installPrevious(folder: string): Promise<Installation> {
  await mkdir(folder, { recursive: true });
  const archive = `${folder}.tar`;
  await run('git', ['-C', REPO, 'archive', '-o', archive, PREVIOUS]);
  await run('tar', ['-xf', archive, '-C', folder]);
  await linkAll('build', 'programs', folder);
  await linkAll('node_modules', '@releap', folder);
  // Relative links: they lead to packages of the folder that they are in.
  const own = 'node_modules/@releap';
  await mkdir(join(folder, own));
  for (const name of await readdir(join(REPO, own)))
    await symlink(await readlink(join(REPO, own, name)), join(folder, own, name));
  for (const name of await readdir(join(folder, 'packages'))) {
    const libraries = join('packages', name, 'node_modules');
    await symlink(join(REPO, libraries), join(folder, libraries));
  }
  const bundle = `import { bundlePrograms } from './setup/programs.mjs';
    await bundlePrograms(process.cwd(), process.cwd() + '/build/programs');`;
  await run(process.execPath, ['--input-type=module', '-e', bundle], { cwd: folder });
  return { name: 'previous', main: mainOf(folder) };
}

function mainOf(installation: string): string {
  const bundle = currentBundles(`${installation}/`)[MAIN];
  return bundle === undefined ? join(installation, MAIN) : join(installation, 'build/programs', bundle);
}

/** Links everything in a folder of this checkout. Files are hard links: a link to them in another folder is one to the file itself. */
async function linkAll(of: string, except: string, folder: string): Promise<void> {
  const to = join(folder, of);
  await mkdir(to, { recursive: true });
  for (const entry of await readdir(join(REPO, of), { withFileTypes: true })) {
    const [source, target] = [join(REPO, of, entry.name), join(to, entry.name)];
    if (entry.name === except) continue;
    if (entry.isFile()) await link(source, target).catch(() => copyFile(source, target));
    else await symlink(source, target);
  }
}
