/** Folders for tests and measurements that start services: if their process is killed, the next run removes what it has left. */
import { readdirSync, rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { removeDeadRuns, RUN_VARIABLE } from './run/remove-leftovers.ts';
import { makeRunFolder, OWNER_FILE } from './run/run-folder.ts';

let run: Promise<void> | undefined;

/**
 * Creates an empty folder below that of the run; a file that is run alone is a run of its own. The home of a service must be
 * such a folder, or lie in one: its cgroups, network namespaces and rules are found by the home's path.
 */
export async function temporaryFolder(prefix: string): Promise<string> {
  run ??= process.env[RUN_VARIABLE] === undefined ? beginRun() : Promise.resolve();
  await run;
  return await mkdtemp(path.join(tmpdir(), prefix));
}

async function beginRun(): Promise<void> {
  await removeDeadRuns();
  const folder = await makeRunFolder();
  process.env['TMPDIR'] = folder.path;
  process.env[RUN_VARIABLE] = folder.owner;
  process.once('exit', () => {
    // What a failed test has left needs more than this: the next run removes it.
    const names = readdirSync(folder.path);
    if (names.every((name) => name === OWNER_FILE)) rmSync(folder.path, { recursive: true });
  });
}
