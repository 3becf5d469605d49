/** Archives that depend on nothing but the files in them: the same bytes from each build. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import {
  chmod,
  copyFile,
  constants,
  lstat,
  lutimes,
  mkdir,
  readdir,
  readlink,
  symlink,
  writeFile,
} from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { run } from '../command.mjs';

/**
 * Copies a file, link or folder with modes that do not depend on a umask: 755 for folders and programs, else 644.
 * @param {(file: string) => boolean} [skip]
 */
export async function copyReproducibly(from, to, skip = () => false) {
  const found = await lstat(from);
  await mkdir(path.dirname(to), { recursive: true, mode: 0o755 });
  if (found.isSymbolicLink()) await symlink(await readlink(from), to);
  else if (found.isDirectory()) {
    await mkdir(to, { recursive: true });
    for (const name of await readdir(from)) {
      const file = path.join(from, name);
      if (!skip(file)) await copyReproducibly(file, path.join(to, name), skip);
    }
  } else {
    await copyFile(from, to, constants.COPYFILE_FICLONE);
    await chmod(to, (found.mode & 0o111) === 0 ? 0o644 : 0o755);
  }
}

/** Gives all files below a folder, and itself, one time and folders one mode. @param {number} epoch seconds */
export async function setTimes(folder, epoch) {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) await setTimes(file, epoch);
    else await lutimes(file, epoch, epoch);
  }
  await chmod(folder, 0o755);
  await lutimes(folder, epoch, epoch);
}

/** Options of tar with which equal files make equal archives. */
export function tarOptions(epoch, owner = 0) {
  const identity = [`--owner=${owner}`, `--group=${owner}`, '--numeric-owner'];
  return ['--sort=name', `--mtime=@${epoch}`, ...identity, '--format=gnu'];
}

/** Writes a `.tar.gz` of names in a folder. */
export async function writeArchive(archive, folder, names, epoch) {
  // -n: neither a name nor a time.
  const compress = '--use-compress-program=gzip -n -6';
  await run('tar', [...tarOptions(epoch), compress, '-C', folder, '-cf', archive, ...names], { minutes: 30 });
}

/** @returns {Promise<string>} in hexadecimal */
export async function sha256OfFile(file) {
  const hash = createHash('sha256');
  await pipeline(createReadStream(file), hash);
  return hash.digest('hex');
}

/** As sha256sum(1) writes and checks them. */
export async function writeChecksums(file, files) {
  const lines = [];
  for (const one of files) lines.push(`${await sha256OfFile(one)}  ${path.basename(one)}\n`);
  await writeFile(file, lines.join(''));
}
