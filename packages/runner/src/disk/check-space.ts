import { statfs } from 'node:fs/promises';

/** A disk is refused when the host would be left with less than this. */
const HOST_RESERVE_BYTES = 256 * 1024 * 1024;

/** The host has no space for another sandbox's disks. */
export class DiskFullError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'DiskFullError';
  }
}

/** @param needed bytes that are to be written at once. @throws DiskFullError */
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
