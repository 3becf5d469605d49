/** What a cgroup of version 2 may read and write: `io.max`. */
import { access, readFile, realpath, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';

/** Each for reading, and again for writing. */
export interface DiskLimit {
  mibPerSecond?: number;
  iops?: number;
}

const DEVICES = '/sys/dev/block';

/**
 * Lines for `io.max`, one for each disk below the folders; none without a limit.
 * @throws when the file system of a folder lies on no block device of its own
 */
export async function ioMaxLines(
  { mibPerSecond, iops }: DiskLimit,
  folders: readonly string[],
): Promise<string[]> {
  if (mibPerSecond === undefined && iops === undefined) return [];
  const bytes = mibPerSecond === undefined ? 'max' : mibPerSecond * 2 ** 20;
  const operations = iops ?? 'max';
  const disks = new Set(await Promise.all(folders.map(diskOfFolder)));
  return [...disks].map(
    (disk) => `${disk} rbps=${bytes} wbps=${bytes} riops=${operations} wiops=${operations}`,
  );
}

async function diskOfFolder(folder: string): Promise<string> {
  const { dev } = await stat(folder, { bigint: true });
  // As in makedev(3).
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  const disk = await diskOf(`${major}:${minor}`);
  if (disk !== undefined) return disk;
  throw new Error(
    `what sandboxes read and write cannot be limited at ${folder}: its file system (such as btrfs, ZFS or overlay) lies on no block ` +
      'device of its own. Use XFS or ext4 there, or unset RELEAP_SANDBOX_DISK_MIB_S and RELEAP_SANDBOX_DISK_IOPS',
  );
}

/**
 * The whole disk that a block device is, or is a partition of: the kernel limits no partitions.
 * @param device `major:minor`
 * @returns undefined when there is no such block device
 */
export async function diskOf(device: string, devices = DEVICES): Promise<string | undefined> {
  const path = await realpath(join(devices, device)).catch(() => undefined);
  if (path === undefined) return undefined;
  const isPartition = await access(join(path, 'partition')).then(
    () => true,
    () => false,
  );
  if (!isPartition) return device;
  return (await readFile(join(dirname(path), 'dev'), 'utf8')).trim();
}
