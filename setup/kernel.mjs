/**
 * The guests' kernel: downloaded and unpacked, never installed, and replaced when the distribution has a newer one. Plain
 * Node >= 18, no dependencies: set-up runs it before anything is there.
 */
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { candidateVersion, dependencyMatching, downloadPackage, refreshLists } from './apt.mjs';
import { run, say, SetupError } from './command.mjs';
import { kernelSource } from './packages.mjs';

/** How often a newer kernel is looked for. */
const CHECK_EVERY_MS = 24 * 60 * 60_000;

/**
 * Has a kernel in `folder`: `vmlinuz`, `modules/`, `version`, and `package` that names what it came from. A kernel that is
 * there stays when no newer one can be had. What was saved with an older one needs no file of it: a guest's memory holds
 * its kernel.
 * @param {{ folder: string, packages: string, now?: number }} options absolute folders
 */
export async function ensureKernel({ folder, packages, now = Date.now() }) {
  const present = existsSync(path.join(folder, 'vmlinuz'));
  if (present && !(await isCheckDue(folder, now))) return;
  try {
    if (present) await refreshLists();
    const wanted = await newestKernel();
    const have = (await readFile(path.join(folder, 'package'), 'utf8').catch(() => '')).trim();
    if (!present || have !== wanted.id) await unpackKernel(wanted, folder, packages);
    await utimes(folder, new Date(now), new Date(now));
  } catch (error) {
    if (!present) throw error;
    say(`no newer kernel for guests could be looked for: ${error.message.split('\n')[0]}`);
  }
}

/** @returns {Promise<boolean>} */
export async function isCheckDue(folder, now) {
  const { mtimeMs } = await stat(folder);
  return now - mtimeMs >= CHECK_EVERY_MS || mtimeMs > now;
}

/** @returns {Promise<{ image: string, others: string[], id: string }>} names of packages, and what tells this kernel from others */
async function newestKernel() {
  const source = kernelSource(await readFile('/etc/os-release', 'utf8').catch(() => ''));
  const image = await dependencyMatching(source.meta, source.image);
  return { image, others: source.others(image), id: `${image}=${await candidateVersion(image)}` };
}

async function unpackKernel({ image, others, id }, folder, packages) {
  const debs = [];
  for (const name of [image, ...others]) debs.push(await downloadPackage(name, packages));
  say(`unpacking the guests' kernel (${id})`);
  const unpacked = await mkdtemp(path.join(path.dirname(folder), 'kernel-'));
  try {
    const all = path.join(unpacked, 'all');
    for (const deb of debs) await run('dpkg-deb', ['-x', deb, all]);
    const boot = path.join(all, 'boot');
    const kernel = (await readdir(boot)).find((file) => file.startsWith('vmlinuz-'));
    if (kernel === undefined) throw new SetupError(`${image} holds no kernel`);
    const version = kernel.slice('vmlinuz-'.length);
    const libraries = ['lib/modules', 'usr/lib/modules'].map((at) => path.join(all, at, version));
    const modules = libraries.find((at) => existsSync(at));
    if (modules === undefined) throw new SetupError(`${image} holds no modules`);
    const made = path.join(unpacked, 'kernel');
    await mkdir(made);
    await rename(modules, path.join(made, 'modules'));
    await writeFile(path.join(made, 'version'), `${version}\n`);
    await writeFile(path.join(made, 'package'), `${id}\n`);
    await rename(path.join(boot, kernel), path.join(made, 'vmlinuz'));
    await rm(folder, { recursive: true, force: true });
    await rename(made, folder);
  } finally {
    await rm(unpacked, { recursive: true, force: true });
  }
}
