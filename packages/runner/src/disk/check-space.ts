import { statfs } from 'node:fs/promises';
import { lowBytes } from './space-watch.ts';

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
  const { bavail, blocks, bsize, ffree, files } = await statfs(folder);
  const reserve = Math.max(RESERVE.leastBytes, RESERVE.factor * lowBytes(blocks * bsize));
  const free = bavail * bsize;
  const mib = (bytes: number): number => Math.floor(bytes / 1024 / 1024);
  if (free - needed < reserve || (files > 0 && ffree === 0)) {
    throw new DiskFullError(
      `the host's disk below ${folder} is full: ${mib(free)} MiB are free, ` +
        `${mib(reserve + needed)} MiB would have to be`,
    );
  }
}
