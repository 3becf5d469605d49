import { rm } from 'node:fs/promises';
import { DiskFullError } from '../disk/check-space.ts';
import { ProcessError, run } from '../process/index.ts';
import { HOSTD } from '../host/hostd.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';

/**
 * Copies the data of a sparse memory file: as a reflink where the file system supports it, else about 3 GB/s.
 * @param niceness above 0 for a lower scheduling priority
 */
export async function copyMemoryFile(source: string, target: string, niceness = 0): Promise<void> {
  await rm(target, { force: true });
  await run('nice', ['-n', String(niceness), HOSTD, 'copy', source, target], {
    deadlineMs: DEADLINES_MS.copyMemory,
  });
}

/** Turns ENOSPC and EDQUOT into a DiskFullError. Any other error is returned unchanged. */
export function explainFullDisk(error: unknown, path: string, what = "the sandbox's memory"): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  const said = error instanceof ProcessError ? error.stderr : message;
  return code === 'ENOSPC' || /no space left|disk quota/i.test(said)
    ? new DiskFullError(`the host's disk is full: no space for ${what} at ${path}`)
    : error;
}
