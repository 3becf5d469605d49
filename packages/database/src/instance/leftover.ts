import { readdir, readFile, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';

const POLL_MS = 50;
/** Signals of PostgreSQL's shutdown modes, gentlest first, with their deadlines. */
const ESCALATION: [NodeJS.Signals, number][] = [
  ['SIGINT', 20_000],
  ['SIGQUIT', 5_000],
  ['SIGKILL', 5_000],
];

/**
 * Stops a server that outlived its parent, and removes lock files of processes that are not a server on this folder.
 * (PostgreSQL treats any live process of its uid with the recorded pid as one: after a power failure that may be another
 * instance, and it would never start again.)
 * The caller holds the lock of the folder: no live supervisor owns what is found here.
 */
export async function clearLeftover(folders: { data: string; socket: string }, log: Logger): Promise<void> {
  const lock = path.join(folders.data, 'postmaster.pid');
  const pid = Number.parseInt(await readFile(lock, 'utf8').catch(() => ''), 10);
  if (pid > 0 && (await serves(pid, folders.data))) {
    log.warn({ pid }, 'stopping a PostgreSQL that outlived its supervisor');
    for (const [signal, patience] of ESCALATION) {
      if (await endedBy(pid, signal, patience, folders.data)) break;
      if (signal === 'SIGKILL')
        throw new Error(`PostgreSQL ${pid} on ${folders.data} does not exit, not even after SIGKILL`);
    }
  }
  await rm(lock, { force: true });
  for (const entry of await readdir(folders.socket))
    await rm(path.join(folders.socket, entry), { force: true });
}

async function endedBy(
  pid: number,
  signal: NodeJS.Signals,
  patienceMs: number,
  data: string,
): Promise<boolean> {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return true;
    throw new Error(`cannot stop PostgreSQL ${pid} on ${data}`, { cause: error });
  }
  for (const end = Date.now() + patienceMs; Date.now() < end; await sleep(POLL_MS)) {
    if (!(await serves(pid, data))) return true;
  }
  return false;
}

/** A server works in its data folder; device and inode see through mount namespaces and symbolic links. */
async function serves(pid: number, data: string): Promise<boolean> {
  try {
    const [cwd, folder] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(data)]);
    return cwd.dev === folder.dev && cwd.ino === folder.ino;
  } catch {
    return false;
  }
}
