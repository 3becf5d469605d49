import { hasFewInodes, lowBytes, type Space, spaceOf } from './space-watch.ts';

const MIB = 2 ** 20;
/** Free space that must remain on the host's file system after a disk is created: more than guests are paused at. */
const RESERVE = { leastBytes: 256 * MIB, factor: 1.25 };

/** The host's file system has no space for another disk. */
export class DiskFullError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'DiskFullError';
  }
}

/** What new disks may take of a file system, in MiB: no more than that is placed on this host. */
export function freeForDisksMib(space: Space): number {
  if (hasFewInodes(space, RESERVE.factor)) return 0;
  return Math.max(0, Math.floor((space.freeBytes - reserveBytes(space)) / MIB));
}

/** @param needed bytes that the caller writes immediately. @throws DiskFullError */
export async function checkSpace(folder: string, needed = 0): Promise<void> {
  const space = await spaceOf(folder);
  const wanted = reserveBytes(space) + needed;
  if (space.freeBytes < wanted) {
    const mib = (bytes: number): number => Math.floor(bytes / MIB);
    throw new DiskFullError(
      `the host's disk below ${folder} is full: ${mib(space.freeBytes)} MiB are free, ${mib(wanted)} MiB would have to be`,
    );
  }
  if (hasFewInodes(space, RESERVE.factor))
    throw new DiskFullError(
      `the file system of ${folder} has ${space.freeInodes} inodes left, too few for another disk`,
    );
}

function reserveBytes({ totalBytes }: Space): number {
  return Math.max(RESERVE.leastBytes, RESERVE.factor * lowBytes(totalBytes));
}
