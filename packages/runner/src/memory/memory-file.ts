import { rm } from 'node:fs/promises';
import { DiskFullError } from '../disk/check-space.ts';
import { ProcessError, run } from '../process/index.ts';
import { HOSTD } from '../host/hostd.ts';

const COPY_DEADLINE_MS = 120_000;

/**
 * Copies what a memory file holds; nothing where the file system clones, else a third of a millisecond a megabyte.
 * @param niceness above 0 to let others have the processors first
 */
export async function copyMemoryFile(source: string, target: string, niceness = 0): Promise<void> {
  await rm(target, { force: true });
  await run('nice', ['-n', String(niceness), HOSTD, 'copy', source, target], {
    deadlineMs: COPY_DEADLINE_MS,
  });
}

/** The same error, in words for people when it says that a disk is full. */
export function explainFullDisk(error: unknown, path: string, what = "the sandbox's memory"): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  const said = error instanceof ProcessError ? error.stderr : message;
  return code === 'ENOSPC' || /no space left|disk quota/i.test(said)
    ? new DiskFullError(`the host's disk is full: no space for ${what} at ${path}`)
    : error;
}
