import { randomUUID } from 'node:crypto';
import { link, mkdir, readdir, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { linkOrCopy } from './disk-chain.ts';
import { syncPath } from './sync-path.ts';

/** Time after its last use for which a copy without other links is kept. */
const UNUSED_KEPT_MS = 24 * 60 * 60_000;

/** For an image of many gigabytes on a busy disk. */
const COPY_DEADLINE_MS = 15 * 60_000;

/**
 * Files of the cache on the file system of the VMs. The jail of a VM has a hard link to its image; if the cache is on
 * another file system, an image is copied once instead of once per VM.
 */
export class LocalCopies {
  /** Whether files of the cache cannot be linked into the folder. */
  readonly isNeeded: boolean;
  readonly #folder: string;
  readonly #cacheDir: string;
  readonly #copying = new Map<string, Promise<string>>();

  private constructor(folder: string, cacheDir: string, isNeeded: boolean) {
    this.#folder = folder;
    this.#cacheDir = cacheDir;
    this.isNeeded = isNeeded;
  }

  /** @param folder absolute path of the copies, on the file system of the VMs */
  static async open(folder: string, cacheDir: string): Promise<LocalCopies> {
    await Promise.all([
      mkdir(folder, { recursive: true, mode: 0o755 }),
      mkdir(cacheDir, { recursive: true }),
    ]);
    const copies = new LocalCopies(folder, cacheDir, !(await canLink(cacheDir, folder)));
    await copies.#sweep();
    return copies;
  }

  /** Path of a cached file that can be linked: its own, or that of its copy. */
  async localPath(path: string): Promise<string> {
    if (!this.isNeeded || !path.startsWith(`${this.#cacheDir}/`)) return path;
    // Cached files are immutable.
    const { ino, size, mtimeMs } = await stat(path);
    const copy = join(this.#folder, `${ino}-${size}-${Math.trunc(mtimeMs)}`);
    const copying =
      this.#copying.get(copy) ?? this.#copy(path, copy).finally(() => this.#copying.delete(copy));
    this.#copying.set(copy, copying);
    return await copying;
  }

  async #copy(path: string, copy: string): Promise<string> {
    const now = new Date();
    const isThere = await utimes(copy, now, now).then(
      () => true,
      () => false,
    );
    if (!isThere) {
      await this.#sweep();
      // Renamed after the fsync: a file with this name is complete.
      const partial = `${copy}.new`;
      await rm(partial, { force: true });
      await linkOrCopy(path, partial, COPY_DEADLINE_MS);
      await syncPath(partial);
      await rename(partial, copy);
    }
    return copy;
  }

  async #sweep(): Promise<void> {
    for (const name of await readdir(this.#folder)) {
      const path = join(this.#folder, name);
      const file = await stat(path).catch(() => undefined);
      const isUnused = file?.nlink === 1 && Date.now() - file.mtimeMs > UNUSED_KEPT_MS;
      if (isUnused) await rm(path, { force: true });
    }
  }
}

/** Tries to link: a file system that is mounted twice has one device number, and links between its mounts fail. */
async function canLink(from: string, to: string): Promise<boolean> {
  const name = `.trial-${randomUUID()}`;
  const [source, target] = [join(from, name), join(to, name)];
  try {
    await writeFile(source, '');
    await link(source, target);
    return true;
  } catch {
    return false;
  } finally {
    await rm(source, { force: true });
    await rm(target, { force: true });
  }
}
