/** The file system of the server's home: free space, and whether it clones files. */
import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { copyFile, mkdtemp, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Check } from './check.ts';

const LOW_BYTES = 5 * 1024 ** 3;

export async function checkStorage(home: string, cache: string): Promise<Check[]> {
  const folder = await nearestFolder(home);
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  const space: Check = {
    id: 'disk',
    title: 'Disk',
    status: free < LOW_BYTES ? 'warn' : 'ok',
    detail: `${(free / 1024 ** 3).toFixed(1)} GiB free at ${home}${free < LOW_BYTES ? ': images and sandboxes will soon fill it' : ''}`,
  };
  return [space, await checkCloning(home, folder), ...(await checkCache(folder, cache))];
}

/** Sandboxes have hard links to their images. No check when they can. */
async function checkCache(home: string, cache: string): Promise<Check[]> {
  const [mine, other] = await Promise.all([stat(home), stat(await nearestFolder(cache))]);
  if (mine.dev === other.dev) return [];
  return [
    {
      id: 'cache',
      title: 'Cache',
      status: 'warn',
      detail: `RELEAP_CACHE (${cache}) is on another file system than RELEAP_HOME (${home}): each image is copied once and takes its space twice`,
    },
  ];
}

async function checkCloning(home: string, folder: string): Promise<Check> {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'reflink',
    title: 'File cloning',
    status,
    detail,
  });
  let trial: string;
  try {
    trial = await mkdtemp(join(folder, '.rlp-doctor-'));
  } catch {
    return check('warn', `not tried: ${folder} may not be written to by this user`);
  }
  try {
    const source = join(trial, 'a');
    await writeFile(source, randomBytes(64 * 1024));
    await copyFile(source, join(trial, 'b'), constants.COPYFILE_FICLONE_FORCE);
    return check('ok', `the file system at ${home} clones files: copies of disks and memory cost nothing`);
  } catch {
    return check(
      'warn',
      `the file system at ${home} cannot clone files: large copies are written out (XFS and btrfs can)`,
    );
  } finally {
    await rm(trial, { recursive: true, force: true });
  }
}

/** The home itself, or what it will be made in. */
export async function nearestFolder(path: string): Promise<string> {
  for (let folder = path; ; folder = dirname(folder)) {
    const found = await statfs(folder).then(
      () => true,
      () => false,
    );
    if (found || folder === dirname(folder)) return folder;
  }
}
