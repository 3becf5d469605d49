import { isLow, lowBytes, spaceOf } from './space-watch.ts';

/** Free space that must remain on the host's file system after a disk is created: more than guests are paused at. */
const RESERVE = { leastBytes: 256 * 1024 * 1024, factor: 1.25 };

/** The host's file system has no space for another disk. */
export class DiskFullError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'DiskFullError';
  }
}

/** @param needed bytes that the caller writes immediately. @throws DiskFullError */
export async function checkSpace(folder: string, needed = 0): Promise<void> {
  const space = await spaceOf(folder);
  const { freeBytes, totalBytes, freeInodes } = space;
  const reserve = Math.max(RESERVE.leastBytes, RESERVE.factor * lowBytes(totalBytes));
  const mib = (bytes: number): number => Math.floor(bytes / 1024 / 1024);
  if (freeBytes - needed < reserve) {
    throw new DiskFullError(
      `the host's disk below ${folder} is full: ${mib(freeBytes)} MiB are free, ` +
        `${mib(reserve + needed)} MiB would have to be`,
    );
  }
  if (isLow(space, RESERVE.factor))
    throw new DiskFullError(
      `the file system of ${folder} is nearly out of inodes: ${freeInodes} are free. Remove files from it`,
    );
}
