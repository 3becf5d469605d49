import { statfs } from 'node:fs/promises';

/** Free space that must remain on the host's file system after a disk is created. */
const HOST_RESERVE_BYTES = 256 * 1024 * 1024;

/** The host's file system has no space for another disk. */
export class DiskFullError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'DiskFullError';
  }
}

/** @param needed bytes that the caller writes immediately. @throws DiskFullError */
export async function checkSpace(folder: string, needed = 0): Promise<void> {
  const { bavail, bsize, ffree, files } = await statfs(folder);
  const free = bavail * bsize;
  const mib = (bytes: number): number => Math.floor(bytes / 1024 / 1024);
  if (free - needed < HOST_RESERVE_BYTES || (files > 0 && ffree === 0)) {
    throw new DiskFullError(
      `the host's disk below ${folder} is full: ${mib(free)} MiB are free, ` +
        `${mib(HOST_RESERVE_BYTES + needed)} MiB would have to be`,
    );
  }
}
