import { mkdir, open, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../process/index.ts';
import { syncPath } from './sync-path.ts';

/** Smallest file system in MiB; smaller sizes are rounded up. mkfs needs space for its tables. */
export const EXT4_MIN_MIB = 8;
/** Smallest journal of ext4 with 4 KiB blocks, in MiB. */
const JOURNAL_MIN_MIB = 4;
const JOURNAL_MAX_MIB = 32;
/** Most cached sizes; the least recently used one is removed. One takes a few hundred kilobytes. */
const SIZES_KEPT = 128;
const MKFS_DEADLINE_MS = 120_000;
/** Incremented with each change of the format. */
export const EMPTY_DISK_VERSION = 1;
/** Fixed, so that a size that is formatted again has the same bytes and existing layers still fit. */
const FIXED_UUID = '5e1f0a9c-8d1b-4e0e-9d4a-3b6f2c7a1d55';
/** The time that e2fsprogs records, fixed for the same reason. */
const FIXED_TIME = 'E2FSPROGS_FAKE_TIME=1700000000';

/**
 * `overlay`: has the folders `upper` and `work`, so that guests need not create them. `journal`: the same with a journal,
 * for disks that must survive a crash of the guest or the host. `plain`: no folders.
 */
export type EmptyDiskKind = 'overlay' | 'journal' | 'plain';

/**
 * Formatted empty disks, one per size, as backing files of layers. Immutable once visible; shared by all VMs and by all
 * services that share the cache.
 */
export class EmptyExt4Store {
  readonly #folder: string;
  readonly #making = new Map<string, Promise<string>>();

  /** @param cacheDir absolute; the files are in its folder `scratch/` */
  constructor(cacheDir: string) {
    this.#folder = join(cacheDir, 'scratch');
  }

  /** Absolute path of a raw, sparse, read-only ext4 image of that size; formats it on first use. */
  async ensure(mib: number, kind: EmptyDiskKind = 'plain'): Promise<string> {
    if (!Number.isInteger(mib) || mib < 1)
      throw new Error(`invalid disk size ${mib} MiB: it must be a positive integer`);
    const bytesMib = Math.max(mib, EXT4_MIN_MIB);
    const path = join(this.#folder, `${kind}-v${EMPTY_DISK_VERSION}-${bytesMib}.ext4`);
    const file = await stat(path).catch(() => undefined);
    if (file?.size === bytesMib * 1024 * 1024) {
      const now = new Date();
      // Orders the eviction; a read-only cache still works.
      if (now.getTime() - file.mtimeMs > 60_000) await utimes(path, now, now).catch(() => undefined);
      return path;
    }
    const making =
      this.#making.get(path) ?? this.#make(path, bytesMib, kind).finally(() => this.#making.delete(path));
    this.#making.set(path, making);
    return await making;
  }

  async #make(path: string, mib: number, kind: EmptyDiskKind): Promise<string> {
    await mkdir(this.#folder, { recursive: true, mode: 0o755 });
    const partial = `${path}.${process.pid}.partial`;
    try {
      await rm(partial, { force: true });
      const file = await open(partial, 'wx', 0o444);
      try {
        await file.truncate(mib * 1024 * 1024);
      } finally {
        await file.close();
      }
      await run('env', [FIXED_TIME, 'mkfs.ext4', ...mkfsArguments(partial, mib, kind === 'journal')], {
        deadlineMs: MKFS_DEADLINE_MS,
      });
      if (kind !== 'plain') {
        // debugfs exits with 0 also after errors; the guest creates a missing folder.
        await run('env', [FIXED_TIME, 'debugfs', '-w', '-f', '-', partial], {
          input: 'mkdir upper\nmkdir work\n',
          deadlineMs: MKFS_DEADLINE_MS,
        });
      }
      // An existing file counts as complete.
      await syncPath(partial);
      await rename(partial, path);
    } catch (error) {
      throw new Error(`cannot make an empty disk of ${mib} MiB: ${(error as Error).message}`, {
        cause: error,
      });
    } finally {
      await rm(partial, { force: true });
    }
    await this.#prune(path);
    return path;
  }

  /** Running VMs have their files open, so unlinking is safe. */
  async #prune(keep: string): Promise<void> {
    const names = (await readdir(this.#folder)).filter((name) => name.endsWith('.ext4'));
    if (names.length <= SIZES_KEPT) return;
    const files = await Promise.all(
      names.map(async (name) => {
        const path = join(this.#folder, name);
        return { path, mtimeMs: (await stat(path).catch(() => undefined))?.mtimeMs ?? 0 };
      }),
    );
    files.sort((a, b) => a.mtimeMs - b.mtimeMs);
    for (const { path } of files.slice(0, files.length - SIZES_KEPT)) {
      if (path !== keep) await rm(path, { force: true });
    }
  }
}

/**
 * The file is new and sparse, so it reads as zeros: inode tables need not be written, neither now nor later by the guest's
 * kernel (that would fill an unused layer). Sandboxes have many small files, hence twice the usual number of inodes.
 */
function mkfsArguments(path: string, mib: number, journal: boolean): string[] {
  const geometry = '-q -F -b 4096 -i 8192 -I 256 -m 0'.split(' ');
  const features = `^resize_inode,${journal ? 'has_journal' : '^has_journal'}`;
  const journalMib = Math.min(Math.max(Math.floor(mib / 32), JOURNAL_MIN_MIB), JOURNAL_MAX_MIB);
  const extended = [
    `hash_seed=${FIXED_UUID}`,
    'lazy_itable_init=1,assume_storage_prezeroed=1,packed_meta_blocks=1,nodiscard',
    ...(journal ? ['lazy_journal_init=1'] : []),
  ];
  return [
    ...geometry,
    '-O',
    features,
    ...(journal ? ['-J', `size=${journalMib}`] : []),
    '-U',
    FIXED_UUID,
    '-E',
    extended.join(','),
    path,
  ];
}
