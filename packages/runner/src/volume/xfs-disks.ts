/** The file systems of copies of volumes: XFS in sparse files, mounted through loop devices. */
import { mkdir, open, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { checkSpace } from '../disk/check-space.ts';
import { syncPath } from '../disk/sync-path.ts';
import { run } from '../process/index.ts';

/** The files of a copy that this module uses. */
export interface DiskPaths {
  /** Sparse file. */
  image: string;
  /** Where it is mounted. */
  mount: string;
  /** Folders in the mounted file system. */
  data: string;
  displaced: string;
}

const GIB = 2 ** 30;
/** Log of the file system. By default it grows with the size, to 2 GiB, all of which is written. */
const LOG_MIB = 64;
/** Of an empty file system, log included. */
const EMPTY_BYTES = (LOG_MIB + 16) * 2 ** 20;
/**
 * Most of a volume that waits in memory to be written to its image. The host's free space does not count that: without a limit a
 * guest is paused too late, and loses what its writes had stored. Linux 6.2 and later can limit it for a device; before, it is
 * limited for all of the host.
 */
const LIMITED = { max_bytes: 32 * 2 ** 20, strict_limit: 1 };
const HOST_DIRTY_BYTES = 256 * 2 ** 20;
const UNLIMITED = { max_ratio: 100, strict_limit: 0 };
/** Under load, and with a log to replay. */
const DEADLINE_MS = 120_000;
/** For writing back everything that is dirty. */
const UNMOUNT_DEADLINE_MS = 600_000;

/**
 * Every volume has a file system of its own, so a full one gives ENOSPC to its own writers. XFS creates inodes on demand and can
 * share extents between files (reflink), and it takes an image of any size milliseconds to make.
 */
export class XfsDisks {
  /** Mounts the image; creates it, with an empty `data`, if there is none. @throws DiskFullError and others */
  async mount(paths: DiskPaths, sizeGb: number): Promise<void> {
    const { image, mount, data, displaced } = paths;
    if (!(await this.isMounted(paths))) {
      if (!(await exists(image))) await create(image, sizeGb);
      await mkdir(mount, { recursive: true, mode: 0o700 });
      // The device is released with the mount, also after a crash of this process.
      await run('mount', ['-t', 'xfs', '-o', 'loop,nosuid,nodev,discard', image, mount], {
        deadlineMs: DEADLINE_MS,
      });
    }
    // Also of one that was mounted already: a process that was killed may not have come to what follows.
    // Direct I/O: otherwise the host caches the content of files twice. Not all file systems support it.
    const device = await deviceOf(mount);
    if (device !== undefined) {
      await run('losetup', ['--direct-io=on', device]).catch(() => undefined);
      if (!(await setWriteback(device, LIMITED))) await limitDirtyBytes();
    }
    await mkdir(displaced, { recursive: true, mode: 0o700 });
    await mkdir(data, { recursive: true, mode: 0o755 });
  }

  async isMounted({ mount }: Pick<DiskPaths, 'mount'>): Promise<boolean> {
    return (await deviceOf(mount)) !== undefined;
  }

  /** @throws when it is in use */
  async unmount({ mount }: Pick<DiskPaths, 'mount'>): Promise<void> {
    const device = await deviceOf(mount);
    if (device === undefined) return;
    // The device keeps its limits, and may be another program's next.
    await setWriteback(device, UNLIMITED);
    try {
      await run('umount', [mount], { deadlineMs: UNMOUNT_DEADLINE_MS });
    } catch (error) {
      await setWriteback(device, LIMITED);
      throw error;
    }
  }
}

async function create(image: string, sizeGb: number): Promise<void> {
  const partial = `${image}.partial`;
  await rm(partial, { force: true });
  await checkSpace(image.slice(0, image.lastIndexOf('/')), EMPTY_BYTES);
  try {
    const file = await open(partial, 'wx', 0o600);
    try {
      await file.truncate(sizeGb * GIB);
    } finally {
      await file.close();
    }
    // maxpct=0: small files may fill all of it.
    const options = ['-m', 'reflink=1', '-i', 'maxpct=0', '-l', `size=${LOG_MIB}m`];
    await run('mkfs.xfs', ['-q', '-K', ...options, partial], { deadlineMs: DEADLINE_MS });
    await syncPath(partial);
    await rename(partial, image);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}

/**
 * Writes settings of a loop device's writeback (Documentation/ABI/testing/sysfs-class-bdi).
 * @returns whether the kernel has all of them
 */
async function setWriteback(device: string, settings: Record<string, number>): Promise<boolean> {
  const number = /^\/dev\/loop(\d+)$/.exec(device)?.[1];
  let hasAll = number !== undefined;
  for (const [name, value] of Object.entries(settings))
    await writeFile(`/sys/class/bdi/7:${number}/${name}`, String(value), { flag: 'r+' }).catch(() => {
      hasAll = false;
    });
  return hasAll;
}

/** Limits what waits in memory to be written on all of the host, unless the operator has set a lower limit (vm.dirty_bytes). */
export async function limitDirtyBytes(path = '/proc/sys/vm/dirty_bytes'): Promise<void> {
  const present = Number(await readFile(path, 'utf8').catch(() => '0'));
  if (present > 0 && present <= HOST_DIRTY_BYTES) return;
  await writeFile(path, String(HOST_DIRTY_BYTES), { flag: 'r+' }).catch(() => undefined);
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return false;
      throw error;
    },
  );
}

/** The device that is mounted at a path, from proc_pid_mountinfo(5); undefined for none. */
async function deviceOf(path: string): Promise<string | undefined> {
  const text = await readFile('/proc/self/mountinfo', 'utf8');
  let device: string | undefined;
  for (const line of text.split('\n')) {
    const [before = '', after = ''] = line.split(' - ');
    if (unescape(before.split(' ')[4] ?? '') === path) device = after.split(' ')[1];
  }
  return device;
}

function unescape(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_all, octal: string) =>
    String.fromCharCode(Number.parseInt(octal, 8)),
  );
}
