/** Sparse files as parts of artifacts: a tar archive, which has no holes. */
import { lstat, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../process/index.ts';

const TAR_DEADLINE_MS = 10 * 60_000;

/** Writes the archive `part` of `file`, both in `folder`. The same content gives the same bytes, and is stored once. */
export async function packSparse(
  folder: string,
  part: string,
  file: string,
  signal: AbortSignal,
): Promise<void> {
  await run(
    'tar',
    [
      '--create',
      '--sparse',
      '--format=gnu',
      '--mtime=@0',
      '--owner=0',
      '--group=0',
      '--numeric-owner',
      '--mode=0444',
      `--file=${join(folder, part)}`,
      `--directory=${folder}`,
      file,
    ],
    { deadlineMs: TAR_DEADLINE_MS, signal },
  );
}

/** Replaces the archive `part` by `file`, which another host has packed. */
export async function unpackSparse(
  folder: string,
  part: string,
  file: string,
  signal: AbortSignal,
): Promise<void> {
  await run(
    'tar',
    ['--extract', '--no-same-owner', `--file=${join(folder, part)}`, `--directory=${folder}`, file],
    { deadlineMs: TAR_DEADLINE_MS, signal },
  );
  await rm(join(folder, part));
}

/** Undefined for anything else than a file with one name: neither a link to another file, nor a second name of one. */
export async function sizeOfFile(path: string): Promise<number | undefined> {
  const found = await lstat(path);
  return found.isFile() && found.nlink === 1 ? found.size : undefined;
}
