/**
 * The guests' kernel: downloaded and unpacked, never installed. Plain Node >= 18, no dependencies: set-up runs it before
 * anything is there.
 */
import { existsSync } from 'node:fs';
import { readdir, readFile, rename, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { candidateVersion, dependencyMatching, downloadPackage, refreshLists } from './apt.mjs';
import { run, SetupError } from './command.mjs';
import { kernelSource } from './packages.mjs';
import { ensureUnpacked } from './unpacked.mjs';

/**
 * Has a kernel in `folder`: `vmlinuz`, `modules/`, `version`, and `package` that names its packages. Memory that was saved
 * with an older kernel needs no file of it: a guest's memory holds its kernel.
 * @param {{ folder: string, packages: string }} options absolute folders
 */
export async function ensureKernel({ folder, packages }) {
  await ensureUnpacked({
    folder,
    what: "the guests' kernel",
    mark: 'vmlinuz',
    newest: async (refresh) => {
      if (refresh) await refreshLists();
      return await newestKernel();
    },
    unpack: (kernel, scratch, made) => unpackKernel(kernel, packages, scratch, made),
  });
}

/** @returns {Promise<{ image: string, others: string[], id: string }>} names of packages, and what tells this kernel from others */
async function newestKernel() {
  const source = kernelSource(await readFile('/etc/os-release', 'utf8').catch(() => ''));
  const image = await dependencyMatching(source.meta, source.image);
  return { image, others: source.others(image), id: `${image}=${await candidateVersion(image)}` };
}

async function unpackKernel({ image, others }, packages, scratch, made) {
  const all = path.join(scratch, 'all');
  for (const name of [image, ...others])
    await run('dpkg-deb', ['-x', await downloadPackage(name, packages), all]);
  const boot = path.join(all, 'boot');
  const kernel = (await readdir(boot)).find((file) => file.startsWith('vmlinuz-'));
  if (kernel === undefined) throw new SetupError(`${image} holds no kernel`);
  const version = kernel.slice('vmlinuz-'.length);
  const libraries = ['lib/modules', 'usr/lib/modules'].map((at) => path.join(all, at, version));
  const modules = libraries.find((at) => existsSync(at));
  if (modules === undefined) throw new SetupError(`${image} holds no modules`);
  await rename(modules, path.join(made, 'modules'));
  await writeFile(path.join(made, 'version'), `${version}\n`);
  await rename(path.join(boot, kernel), path.join(made, 'vmlinuz'));
}
