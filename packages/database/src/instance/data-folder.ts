import { chown, lchown, mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import type { Binaries } from './binaries.ts';
import { viewOf } from './process.ts';
import { collect, ended } from './output.ts';

const INITDB_DEADLINE_MS = 120_000;

/** The superuser and the database of a private instance; it has no other users, its socket is the only way in. */
export const PRIVATE_USER = 'releap';
export const PRIVATE_DATABASE = 'releap';

/**
 * Initial settings of a new folder, which may be tuned there. Settings for durability and privacy are given on the
 * command line at every start instead.
 */
const SETTINGS = `
# Releap: modest memory, for a machine that is there for its sandboxes
max_connections = 100
shared_buffers = 64MB
max_wal_size = 512MB
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = ''
# Files in this folder rather than in /dev/shm: nothing of ours stays behind after a crash.
dynamic_shared_memory_type = mmap
`;

/** Major version of the PostgreSQL that wrote a folder; undefined when there is none. */
export async function folderMajor(data: string): Promise<number | undefined> {
  let text: string;
  try {
    text = await readFile(path.join(data, 'PG_VERSION'), 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  const major = Number(text.trim());
  if (!Number.isInteger(major))
    throw new Error(`${data}/PG_VERSION says ${JSON.stringify(text)}, not a version`);
  return major;
}

/**
 * Creates a data folder: UTF8, C locale, page checksums. It gets its name only when it is complete and on disk; an
 * incomplete one of a crashed attempt is replaced.
 */
export async function createDataFolder(
  binaries: Binaries,
  folders: { data: string; socket: string },
): Promise<void> {
  const partial = `${folders.data}.partial`;
  await rm(partial, { recursive: true, force: true });
  await mkdir(partial, { mode: 0o700 });
  const view = viewOf(binaries, { data: partial, socket: folders.socket });
  if (view.owner !== undefined) await chown(partial, view.owner, view.owner);
  const initdb = view.start('initdb', [
    `--pgdata=${view.data}`,
    `--username=${PRIVATE_USER}`,
    '--auth=trust',
    '--encoding=UTF8',
    '--locale=C',
    '--data-checksums',
    '--no-instructions',
  ]);
  const output = collect(initdb);
  const result = await ended(initdb, INITDB_DEADLINE_MS);
  if (result !== 'code 0') throw new Error(`initdb ended with ${result}: ${output.text().trim()}`);

  const settings = await open(path.join(partial, 'postgresql.conf'), 'a');
  try {
    await settings.write(SETTINGS);
    await settings.sync();
  } finally {
    await settings.close();
  }
  await rename(partial, folders.data);
  const parent = await open(path.dirname(folders.data), 'r');
  try {
    await parent.sync();
  } finally {
    await parent.close();
  }
}

/** A folder that was restored from a backup, or last used by another user, may have the wrong owner. */
export async function ensureOwner(data: string, owner: number | undefined): Promise<void> {
  const { uid } = await stat(data);
  const wanted = owner ?? process.getuid?.();
  if (wanted === undefined || uid === wanted) return;
  if (owner === undefined)
    throw new Error(`${data} belongs to uid ${uid}, and this process runs as uid ${wanted}`);
  const give = async (folder: string): Promise<void> => {
    for (const entry of await readdir(folder, { withFileTypes: true })) {
      const file = path.join(folder, entry.name);
      if (entry.isDirectory()) await give(file);
      else await lchown(file, owner, owner);
    }
    // The folder itself last: an interrupted change of owner is then detected and repeated.
    await lchown(folder, owner, owner);
  };
  await give(data);
}
