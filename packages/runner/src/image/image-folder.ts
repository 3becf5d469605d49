/**
 * Where images lie on disk, and the few file operations that decide what is visible.
 *
 *   <cache>/images/sha256-<hex>/root.squashfs   the root image, 0444; of a stacked one only where it was needed
 *                              /root.vmdk, root.head, layer-<n>.tar   a stacked root image: `image-stack.ts`
 *                              /config.json     `StoredImage`
 *                              /used            empty; its modification time is the last request for the image
 *   <cache>/images/aliases/<name>.json          from an index's digest or a built-in's name to an image's digest
 *                              /pinned          empty; the image cannot be had again and is never removed by itself
 *                              /unsynced        the id of the boot for which alone the folder is valid
 *   <cache>/images/layers/                      unpacked layers, shared: `LayerStore`
 *   <cache>/images/locks/<stripe>               flock(2); keys are spread over 4096 stripes
 *   <cache>/images/locks/salt                   so that the stripe of a key cannot be foreseen
 *   <cache>/images/staging/<stripe>.<random>/   work in progress of the process that holds the stripe
 *   <cache>/images/spare/<stripe>.<random>/     the same for processes that wait for work
 *
 * A folder `sha256-…` appears whole, by rename; it is never written again (but for `used`, `pinned` and `unsynced`), and goes
 * by being renamed into `staging`. It is on disk before, or `unsynced` until it is.
 */
import { createHash, randomUUID } from 'node:crypto';
import { mkdir, open, readFile, readdir, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { makePrivateFile } from '@releap/certificates/private-file';
import { isImageDigest } from '@releap/contract';
import { syncLarge } from '../disk/sync-path.ts';
import { lockFile } from '../lock/file-lock.ts';
import type { FileLock } from '../lock/file-lock.ts';
import {
  IMAGE_FILES,
  imageFacts,
  type ImageFacts,
  readImage,
  type RootImage,
  type StoredImage,
} from './image-files.ts';
import { isMissing } from './image-error.ts';
import { BOOT, LayerStore } from './layer-store.ts';

export type { RootImage, StoredImage } from './image-files.ts';

/** A folder of our own for unfinished work; removed when disposed of, or at the next start after a crash. */
export interface WorkFolder extends AsyncDisposable {
  path: string;
}

export interface Alias {
  digest: string;
  /** Of a built-in image: what it was made from. */
  recipe?: string;
}

const IMAGE_FOLDER = /^sha256-[0-9a-f]{64}$/;

export class ImageFolder {
  readonly dir: string;
  readonly layers: LayerStore;
  readonly #staging: string;
  readonly #spare: string;
  readonly #syncing = new Set<Promise<void>>();
  readonly #locks: string;
  readonly #aliases: string;
  #salt = '';

  constructor(cacheDir: string) {
    this.dir = path.resolve(cacheDir, 'images');
    this.layers = new LayerStore(this.dir);
    this.#staging = path.join(this.dir, 'staging');
    this.#spare = path.join(this.dir, 'spare');
    this.#locks = path.join(this.dir, 'locks');
    this.#aliases = path.join(this.dir, 'aliases');
  }

  /** Makes the folders and removes what processes that are gone have left in `staging` and `spare`. */
  async prepare(): Promise<number> {
    for (const dir of [this.#staging, this.#spare, this.#locks, this.#aliases]) {
      await mkdir(dir, { recursive: true, mode: 0o755 });
    }
    await this.layers.prepare();
    await this.#readSalt();
    await this.#removeAbandoned(this.#spare);
    return await this.#removeAbandoned(this.#staging);
  }

  async #removeAbandoned(parent: string): Promise<number> {
    // Names are `<stripe>.<random>`.
    const byStripe = Map.groupBy(await readdir(parent), (name) => name.split('.')[0] ?? '');
    let removed = 0;
    for (const [stripe, names] of byStripe) {
      // The process that works there holds the stripe; a crash has released it.
      await using lock = await lockFile(path.join(this.#locks, stripe), { wait: false });
      if (!lock) continue;
      for (const name of names)
        await rm(path.join(parent, name), { recursive: true, force: true, maxRetries: 3 });
      removed += names.length;
    }
    return removed;
  }

  /**
   * An empty folder for work on what `key` names, held by one process at a time; waits for another one.
   * Disposing of it removes it and lets the next one in.
   */
  async work(key: string, signal: AbortSignal): Promise<WorkFolder> {
    const stripe = this.#stripeOf(key);
    return await this.#workFolder(
      stripe,
      await lockFile(path.join(this.#locks, stripe), { wait: true, signal }),
    );
  }

  /** An empty folder for short work that need not be the only one of its kind. */
  async shortWork(signal: AbortSignal): Promise<WorkFolder> {
    return await this.#sharedWork('short', this.#staging, signal);
  }

  /** An empty folder for processes that are started before there is work for them. */
  async spareWork(signal: AbortSignal): Promise<WorkFolder> {
    return await this.#sharedWork('spare', this.#spare, signal);
  }

  async #sharedWork(kind: string, parent: string, signal: AbortSignal): Promise<WorkFolder> {
    for (let left = 8; ; left -= 1) {
      const stripe = `${kind}-${randomUUID().slice(0, 2)}`;
      const lock = await lockFile(path.join(this.#locks, stripe), { wait: left === 0, signal });
      if (lock) return await this.#workFolder(stripe, lock, parent);
    }
  }

  async #workFolder(stripe: string, lock: FileLock, parent = this.#staging): Promise<WorkFolder> {
    const dir = path.join(parent, `${stripe}.${randomUUID()}`);
    try {
      await mkdir(dir, { mode: 0o700 });
    } catch (error) {
      await lock.release();
      throw error;
    }
    const dispose = async (): Promise<void> => {
      try {
        await rm(dir, { recursive: true, force: true, maxRetries: 3 });
      } finally {
        await lock.release();
      }
    };
    return { path: dir, [Symbol.asyncDispose]: dispose };
  }

  /** Path for a root image in a staging folder, to be given to `publish` afterwards. */
  async imageIn(staging: string): Promise<{ dir: string; root: string }> {
    const dir = path.join(staging, 'image');
    await mkdir(dir, { mode: 0o755 });
    return { dir, root: path.join(dir, IMAGE_FILES.root) };
  }

  /** Makes a finished image visible, all at once. What is in `dir` is on disk already. */
  async publish(dir: string, image: StoredImage): Promise<void> {
    await writeDurably(path.join(dir, IMAGE_FILES.config), JSON.stringify(image));
    await writeDurably(path.join(dir, IMAGE_FILES.used), '');
    await sync(dir);
    await this.#rename(dir, image);
    await sync(this.dir);
  }

  /**
   * The same for an image that is not on disk yet: it is written there afterwards, and until then it is valid as long as the
   * machine runs. Only for an image that can be fetched again.
   */
  async publishForBoot(dir: string, image: StoredImage): Promise<void> {
    await writeFile(path.join(dir, IMAGE_FILES.unsynced), BOOT, { flag: 'wx' });
    await writeFile(path.join(dir, IMAGE_FILES.config), JSON.stringify(image), { flag: 'wx' });
    await writeFile(path.join(dir, IMAGE_FILES.used), '', { flag: 'wx' });
    await this.#rename(dir, image);
    const syncing = this.#sync(image.digest).finally(() => this.#syncing.delete(syncing));
    this.#syncing.add(syncing);
  }

  /** What was published is on disk, if the disk takes it. */
  async synced(): Promise<void> {
    await Promise.all(this.#syncing);
  }

  async #sync(digest: string): Promise<void> {
    // If it cannot be written, or has been removed meanwhile, it stays valid for this boot alone.
    await this.makeDurable(digest).catch(() => undefined);
  }

  /** An image that is here is on the disk afterwards. @throws when it is not here, or the disk does not take it */
  async makeDurable(digest: string): Promise<void> {
    const folder = this.#folder(digest);
    const names = await readdir(folder);
    if (!names.includes(IMAGE_FILES.unsynced)) return;
    for (const name of names) {
      if (name !== IMAGE_FILES.used && name !== IMAGE_FILES.unsynced)
        await syncLarge(path.join(folder, name));
    }
    await sync(folder);
    await sync(this.dir);
    await rm(path.join(folder, IMAGE_FILES.unsynced), { force: true });
    await sync(folder);
  }

  /** Adds the one file that a stacked image was copied into, and that is on disk. */
  async addWhole(digest: string, file: string): Promise<void> {
    const folder = this.#folder(digest);
    await rename(file, path.join(folder, IMAGE_FILES.root));
    await sync(folder);
  }

  async #rename(dir: string, image: StoredImage): Promise<void> {
    const folder = this.#folder(image.digest);
    try {
      await rename(dir, folder);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error;
      // Another process was faster; its result serves as well, unless it is incomplete (a disk that lost data).
      if ((await this.touch(image.digest)) && (await this.read(image.digest))) return;
      await this.discard(image.digest);
      await rename(dir, folder);
    }
  }

  /** What is stored under a digest, if it is whole. */
  async read(digest: string): Promise<{ stored: StoredImage; image: RootImage } | undefined> {
    return await readImage(this.#folder(digest), digest);
  }

  /** Its files, to copy them elsewhere. */
  files(digest: string): { root: string; config: string } {
    const folder = this.#folder(digest);
    return { root: path.join(folder, IMAGE_FILES.root), config: path.join(folder, IMAGE_FILES.config) };
  }

  /** Says that the image is wanted now. False when it is not there any more. */
  async touch(digest: string): Promise<boolean> {
    const now = Date.now() / 1000;
    try {
      await utimes(path.join(this.#folder(digest), IMAGE_FILES.used), now, now);
      return true;
    } catch (error) {
      if (isMissing(error)) return false;
      throw error;
    }
  }

  /**
   * Takes an image away. With `unlessUsedSince` (milliseconds), not if it was requested after that: a caller that did so while
   * we were at it still finds it under its name a moment later.
   */
  async discard(digest: string, unlessUsedSince = Number.POSITIVE_INFINITY): Promise<boolean> {
    const trash = path.join(this.#staging, `${this.#stripeOf(digest)}.${randomUUID()}`);
    const folder = this.#folder(digest);
    try {
      await rename(folder, trash);
    } catch (error) {
      if (isMissing(error)) return false;
      throw error;
    }
    const used = await stat(path.join(trash, IMAGE_FILES.used)).catch(() => undefined);
    if (used && used.mtimeMs > unlessUsedSince) {
      await rename(trash, folder).catch(() => undefined);
      return false;
    }
    await rm(trash, { recursive: true, force: true });
    return true;
  }

  /** All images with what tidying up has to know. */
  async list(): Promise<ImageFacts[]> {
    const images = [];
    for (const name of await readdir(this.dir)) {
      if (!IMAGE_FOLDER.test(name)) continue;
      images.push(await imageFacts(path.join(this.dir, name), name.replace('-', ':')));
    }
    return images;
  }

  /** Keeps an image that cannot be had again until `unpin`. @returns false when it is not here */
  async pin(digest: string): Promise<boolean> {
    try {
      await writeFile(path.join(this.#folder(digest), IMAGE_FILES.pinned), '', { flush: true });
      await sync(this.#folder(digest));
      return true;
    } catch (error) {
      if (isMissing(error)) return false;
      throw error;
    }
  }

  async unpin(digest: string): Promise<void> {
    await rm(path.join(this.#folder(digest), IMAGE_FILES.pinned), { force: true });
  }

  async readAlias(name: string): Promise<Alias | undefined> {
    try {
      const alias = JSON.parse(await readFile(this.#alias(name), 'utf8')) as Alias;
      return isImageDigest(alias.digest) ? alias : undefined;
    } catch (error) {
      if (isMissing(error) || error instanceof SyntaxError) return undefined;
      throw error;
    }
  }

  /** What the aliases of built-in images name. */
  async builtins(): Promise<Set<string>> {
    const digests = new Set<string>();
    for (const file of await readdir(this.#aliases)) {
      const alias = file.startsWith('builtin-')
        ? await this.readAlias(file.replace(/\.json$/, ''))
        : undefined;
      if (alias) digests.add(alias.digest);
    }
    return digests;
  }

  /** `work` is a folder from `work` or `shortWork`. */
  async writeAlias(work: string, name: string, alias: Alias): Promise<void> {
    const temporary = path.join(work, `alias-${randomUUID()}.json`);
    await writeDurably(temporary, JSON.stringify(alias));
    await rename(temporary, this.#alias(name));
  }

  async #readSalt(): Promise<void> {
    const file = path.join(this.#locks, 'salt');
    // In one step: another process that starts at the same time must not read an empty one, and have other locks.
    await makePrivateFile(file, randomUUID());
    this.#salt = await readFile(file, 'utf8');
  }

  /**
   * Spreads keys over locks, so that their number is bounded. With a secret: who chose a key with the stripe of another
   * tenant's image could hold that up.
   */
  #stripeOf(key: string): string {
    return createHash('sha256').update(`${this.#salt} ${key}`).digest('hex').slice(0, 3);
  }

  #alias(name: string): string {
    return path.join(this.#aliases, `${name.replace(':', '-')}.json`);
  }

  #folder(digest: string): string {
    if (!isImageDigest(digest)) throw new TypeError(`${JSON.stringify(digest)} is not an image digest`);
    return path.join(this.dir, digest.replace(':', '-'));
  }
}

async function writeDurably(file: string, text: string): Promise<void> {
  await writeFile(file, text, { mode: 0o644, flag: 'wx', flush: true });
}

async function sync(target: string): Promise<void> {
  await using handle = await open(target, 'r');
  await handle.sync();
}
