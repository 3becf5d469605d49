/**
 * The guests' kernel: downloaded and unpacked, never installed. Plain Node >= 18, no dependencies: set-up runs it before
 * anything is there.
 */
import { existsSync } from 'node:fs';
import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { debianCodename, suiteView } from './apt-view.mjs';
import { candidateVersion, dependencyMatching, downloadPackage, refreshLists } from './apt.mjs';
import { run, SetupError } from './command.mjs';
import { DEBIAN_KERNEL, kernelSource } from './packages.mjs';
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
    unpack: async ({ image, others }, scratch, made) => {
      const debs = [];
      for (const name of [image, ...others]) debs.push(await downloadPackage(name, packages));
      await unpackKernel(image, debs, scratch, made);
    },
  });
}

/** The first kernel with which programs can map files of a volume shared, which SQLite needs (FUSE_DIRECT_IO_ALLOW_MMAP). */
const OLDEST_FOR_VOLUMES = [6, 6];
/** The Debian release whose kernel guests with volumes get where the machine's is older. */
const DEBIAN_SUITE = 'trixie';

/** @param {string} version such as `6.1.0-56-cloud-amd64`. @returns {boolean} */
export function servesVolumes(version) {
  const [major, minor] = version.split('.').map(Number);
  return major > OLDEST_FOR_VOLUMES[0] || (major === OLDEST_FOR_VOLUMES[0] && minor >= OLDEST_FOR_VOLUMES[1]);
}

/**
 * Has the kernel of guests with volumes in `folder`, as `ensureKernel` does, if that of other guests is too old: on Debian 12
 * that of Debian 13.
 * @param {{ folder: string, kernel: string, lists: string }} options absolute folders: of this kernel, of that of other guests,
 *   and for lists of packages
 * @returns {Promise<boolean>} whether there is one
 */
export async function ensureVolumeKernel({ folder, kernel, lists }) {
  const version = await readFile(path.join(kernel, 'version'), 'utf8');
  const codename = await debianCodename();
  if (servesVolumes(version) || codename === undefined) {
    await rm(folder, { recursive: true, force: true });
    return false;
  }
  await ensureUnpacked({
    folder,
    what: 'the kernel of guests with volumes',
    mark: 'vmlinuz',
    newest: async () => {
      const view = await suiteView(lists, codename, DEBIAN_SUITE);
      await view.update();
      const image = await view.dependency(DEBIAN_KERNEL.meta, DEBIAN_KERNEL.image);
      return { view, image, id: `${image}=${await view.candidate(image)}` };
    },
    unpack: async ({ view, image }, scratch, made) => {
      const deb = await view.downloadOne(image, path.join(scratch, 'deb'));
      await unpackKernel(image, [deb], scratch, made);
    },
  });
  return true;
}

/** @returns {Promise<{ image: string, others: string[], id: string }>} names of packages, and what tells this kernel from others */
async function newestKernel() {
  const source = kernelSource(await readFile('/etc/os-release', 'utf8').catch(() => ''));
  const image = await dependencyMatching(source.meta, source.image);
  return { image, others: source.others(image), id: `${image}=${await candidateVersion(image)}` };
}

async function unpackKernel(image, debs, scratch, made) {
  const all = path.join(scratch, 'all');
  for (const deb of debs) await run('dpkg-deb', ['-x', deb, all]);
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
