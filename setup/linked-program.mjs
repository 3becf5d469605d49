/**
 * A program of an unpacked package with the loader and the shared libraries that it needs, so that it runs the same whatever
 * the machine installs, upgrades or removes. Plain Node >= 18, no dependencies: set-up runs it before anything is there.
 *
 * A folder of one holds `bin` and `lib`. It is started by its own loader, which is told where the libraries are:
 * `vmmCommand` of packages/runner/src/vmm/qemu/vmm-store.ts does that for the VMM.
 */
import { existsSync } from 'node:fs';
import { chmod, copyFile, mkdir } from 'node:fs/promises';
import path from 'node:path';
import { ARCHITECTURE } from './architecture.mjs';
import { run, SetupError } from './command.mjs';

const LIBRARY_FOLDERS = ['usr/lib', 'lib'].map((folder) => path.join(folder, ARCHITECTURE.libraries));
const LOADER = ARCHITECTURE.loader;

/** Where libraries may be below a root. @param {string} root absolute. @returns {string[]} */
export function libraryFolders(root) {
  return LIBRARY_FOLDERS.map((folder) => path.join(root, folder));
}

/**
 * Copies a program, its loader and all libraries that it and `loadable` need.
 * @param {object} options
 * @param {string} options.root what the package was unpacked into, absolute
 * @param {string} options.program absolute, below `root`
 * @param {string[]} [options.loadable] libraries that it loads by itself, absolute
 * @param {string} options.made an existing folder
 * @param {string[]} options.version arguments with which it prints its version
 * @returns {Promise<string>} what it prints, run from `made`
 */
export async function packProgram({ root, program, loadable = [], made, version }) {
  const name = path.basename(program);
  for (const folder of ['bin', 'lib']) await mkdir(path.join(made, folder), { recursive: true });
  await copyFile(program, path.join(made, 'bin', name));
  const libraries = libraryFolders(root);
  const loader = libraries.map((folder) => path.join(folder, LOADER)).find((file) => existsSync(file));
  if (loader === undefined) throw new SetupError(`${LOADER} is not in ${libraries.join(' or ')}`);
  await copyFile(loader, path.join(made, 'lib', LOADER));
  for (const file of [program, ...loadable]) {
    for (const [library, source] of await librariesOf(file, loader, libraries))
      await copyFile(source, path.join(made, 'lib', library));
  }
  for (const file of [`bin/${name}`, `lib/${LOADER}`]) await chmod(path.join(made, file), 0o755);
  const lib = path.join(made, 'lib');
  const command = ['--inhibit-cache', '--library-path', lib, path.join(made, 'bin', name)];
  return await run(path.join(lib, LOADER), [...command, ...version]);
}

/** Names and places of the shared libraries of a program or library. @throws SetupError when one is in none of the folders */
async function librariesOf(file, loader, folders) {
  const searched = folders.join(':');
  const text = await run(loader, ['--inhibit-cache', '--library-path', searched, '--list', file]);
  const found = [...text.matchAll(/^\s*(\S+) => (\S+)/gm)].map(([, name, source]) => [
    path.basename(name),
    source,
  ]);
  const elsewhere = found.find(([, source]) => !folders.some((folder) => source.startsWith(`${folder}/`)));
  if (elsewhere !== undefined)
    throw new SetupError(`${path.basename(file)} needs ${elsewhere[0]}, which is not in ${searched}`);
  return found;
}
