/** The folders of PostgreSQL servers of tests: which process made one, and what to do when that was killed. */
import { readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ownerLives, ownOwner } from './run/run-owner.ts';

/** A folder in memory, where there is one. */
export const TMPFS = '/dev/shm';
const NAME = /^releap-pg-(\d+-\d+)-/;
const TRIES = 100;
const PAUSE_MS = 50;

/** What the name of the folder of a server of this process begins with. */
export function postgresPrefix(): string {
  return `releap-pg-${ownOwner()}-`;
}

/** Ends the servers of a process that has ended or is about to, and removes their folders. */
export async function removePostgresOf(owner: string): Promise<void> {
  await removeWhere((one) => one === owner);
}

/** Those of all processes that were killed. */
export async function removePostgresOfDead(): Promise<void> {
  await removeWhere((owner) => !ownerLives(owner));
}

async function removeWhere(wanted: (owner: string) => boolean): Promise<void> {
  for (const folder of [TMPFS, tmpdir()]) {
    for (const name of await readdir(folder).catch(() => [])) {
      const owner = NAME.exec(name)?.[1];
      if (owner === undefined || !wanted(owner)) continue;
      const root = path.join(folder, name);
      await endServer(root);
      await rm(root, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
    }
  }
}

/** SIGQUIT, an immediate shutdown: the server removes its shared memory, which SIGKILL would leave. */
async function endServer(root: string): Promise<void> {
  const text = await readFile(path.join(root, 'postgres/data/postmaster.pid'), 'utf8').catch(() => '');
  const pid = Number.parseInt(text, 10);
  const lives = async (): Promise<boolean> =>
    (await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')).includes(root);
  if (!(pid > 0) || !(await lives())) return;
  process.kill(pid, 'SIGQUIT');
  for (let tries = 0; tries < TRIES && (await lives()); tries++) await sleep(PAUSE_MS);
}
