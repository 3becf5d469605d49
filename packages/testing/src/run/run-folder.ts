/** The folder for temporary files of a run: all that its tests start has its home below it. */
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { ownerLives, ownOwner } from './run-owner.ts';

/** Short: the paths of Unix sockets below it have at most 107 bytes (unix(7)). */
const PREFIX = 'rt-';
export const OWNER_FILE = 'owner';
/** Counts by test file, of those that have ended when a file that runs alone begins. */
export const RESULTS_FILE = 'results.json';

export interface RunFolder {
  path: string;
  /** The process that the run belongs to, as `ownerOf` names it. */
  owner: string;
}

/** Makes the folder of this process's run. */
export async function makeRunFolder(): Promise<RunFolder> {
  const folder = { path: path.join(tmpdir(), PREFIX + process.pid.toString(36)), owner: ownOwner() };
  // Unprivileged parts of a service work below it.
  await mkdir(folder.path, { mode: 0o755 });
  await writeFile(path.join(folder.path, OWNER_FILE), folder.owner);
  return folder;
}

/** The folders of runs whose process has ended without removing them: it was killed. */
export async function deadRunFolders(): Promise<RunFolder[]> {
  const found: RunFolder[] = [];
  for (const name of await readdir(tmpdir())) {
    if (!name.startsWith(PREFIX)) continue;
    const folder = path.join(tmpdir(), name);
    const owner = await readFile(path.join(folder, OWNER_FILE), 'utf8').catch(() => '');
    if (/^\d+-\d+$/.test(owner) && !ownerLives(owner)) found.push({ path: folder, owner });
  }
  return found;
}
