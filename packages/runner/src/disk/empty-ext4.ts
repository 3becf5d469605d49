import { mkdir, open, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../process/index.ts';
import { syncPath } from './sync-path.ts';

/** Smallest file system made; a smaller wish is rounded up to it. mkfs needs space for its own tables. */
export const EXT4_MIN_MIB = 8;
/** ext4 takes no smaller journal with blocks of 4 KiB. */
const JOURNAL_MIN_MIB = 4;
const JOURNAL_MAX_MIB = 32;
/** Sizes kept at most; the least recently used goes. One takes a few hundred kilobytes. */
const SIZES_KEPT = 128;
const MKFS_DEADLINE_MS = 120_000;
/** Raised with each change of what is made for a size and kind. */
export const EMPTY_DISK_VERSION = 1;
/** Fixed, so that a size made again has the same bytes and a write layer above it still fits. */
const FIXED_UUID = '5e1f0a9c-8d1b-4e0e-9d4a-3b6f2c7a1d55';
/** What the tools of e2fsprogs take for the time, for the same reason. */
const FIXED_TIME = 'E2FSPROGS_FAKE_TIME=1700000000';

/**
 * `overlay`: holds the folders `upper` and `work` already, which spares each guest making them. `journal`: the same
 * with a journal, for disks that must come back whole from a crash of the guest or the host. `plain`: nothing.
 */
export type EmptyDiskKind = 'overlay' | 'journal' | 'plain';

/**
 * Formatted empty disks, one a size, that write layers use as their backing. Never written once visible; shared by
 * all VMs and by all services that share the cache.
 */
export class EmptyExt4Store {
  readonly #folder: string;
  readonly #making = new Map<string, Promise<string>>();

  /** @param cacheDir absolute; files lie in `scratch/` below it */
  constructor(cacheDir: string) {
    this.#folder = join(cacheDir, 'scratch');
  }

  /** Absolute path of a raw, sparse, read-only ext4 image of that size. A size not seen before takes an mkfs. */
  async ensure(mib: number, kind: EmptyDiskKind = 'plain'): Promise<string> {
    if (!Number.isInteger(mib) || mib < 1) throw new Error(`a disk cannot have ${mib} MiB`);
    const bytesMib = Math.max(mib, EXT4_MIN_MIB);
    const path = join(this.#folder, `${kind}-v${EMPTY_DISK_VERSION}-${bytesMib}.ext4`);
    const file = await stat(path).catch(() => undefined);
    if (file?.size === bytesMib * 1024 * 1024) {
      const now = new Date();
      // Only for the choice of what goes first; a cache that is read-only to us still works.
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
        // debugfs says what failed and ends with 0; a folder that is missing all the same is made by the guest.
        await run('env', [FIXED_TIME, 'debugfs', '-w', '-f', '-', partial], {
          input: 'mkdir upper\nmkdir work\n',
          deadlineMs: MKFS_DEADLINE_MS,
        });
      }
      // Whatever is there later is taken for whole.
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

  /** Running VMs hold theirs open, so removing a file takes nothing from them. */
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
 * The file is new and sparse, so all of it reads as zeros: inode tables need not be written, now or later by the
 * guest's kernel (that would fill an unused write layer). Many small files are what sandboxes
 * hold, hence twice the usual inodes.
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
