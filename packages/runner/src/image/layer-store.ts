/**
 * Unpacked, verified layers that images share:
 *
 *   <images>/layers/<hex>.tar    a layer's archive, named by its `diff_id`; its modification time is its last use
 *   <images>/layers/<hex>.index  what its headers say, for faster reading; may be missing
 *   <images>/layers/<hex>.json   `LayerRecord`, named by the digest of the blob that it came in
 *
 * Archives are not fsynced, so both hold for this boot of the machine alone; they are a cache.
 */
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { isImageDigest } from '@releap/contract';
import { isMissing } from './image-error.ts';
import { takeOut } from './jail-folder.ts';

/** Who may have a layer without fetching it: `public` when it was fetched anonymously, else a project or a credential. */
export type LayerScope = 'public' | `project:${string}` | `credential:${string}`;

interface LayerRecord {
  diffId: string;
  boot: string;
  scopes: LayerScope[];
}

export interface StoredLayer {
  path: string;
  sizeBytes: number;
  usedMs: number;
  /** An image has it too, or a pull. */
  linked: boolean;
}

/** Changes when the machine starts anew: files that were not fsynced are then gone, or damaged. */
export const BOOT = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
const ARCHIVE = /^[0-9a-f]{64}\.tar$/;

export class LayerStore {
  readonly #dir: string;

  constructor(imagesDir: string) {
    this.#dir = path.join(imagesDir, 'layers');
  }

  async prepare(): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
  }

  /**
   * The archive of a layer, if it is here and one of `scopes` may have it. A blob's digest alone proves nothing: the
   * server of a manifest can name any.
   */
  async find(digest: string, diffId: string, scopes: readonly LayerScope[]): Promise<string | undefined> {
    const record = await this.#read(digest);
    if (record === undefined || record.diffId !== diffId || record.boot !== BOOT) return undefined;
    if (!record.scopes.some((scope) => scopes.includes(scope))) return undefined;
    const archive = this.#archive(diffId);
    const now = new Date();
    try {
      await utimes(archive, now, now);
      return archive;
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  /** Path of the index of an archive that `find` has returned, if there is one. */
  indexOf(archive: string): string | undefined {
    const index = indexFile(archive);
    return existsSync(index) ? index : undefined;
  }

  /**
   * Takes over a verified archive that an image process left in its jail, and its index if there is one.
   * @param work a folder on the same disk @returns its path
   */
  async add(
    layer: { digest: string; diffId: string },
    scope: LayerScope,
    jail: string,
    { archive: name, index }: { archive: string; index: string },
    work: string,
  ): Promise<string> {
    const archive = this.#archive(layer.diffId);
    await takeOut(jail, name, archive, false);
    const table = indexFile(archive);
    // Before the record: an index of another boot of the machine may be damaged.
    await rm(table, { force: true });
    await takeOut(jail, index, table, false).catch((error: unknown) => {
      if (!isMissing(error)) throw error;
    });
    const before = await this.#read(layer.digest);
    const known = before?.boot === BOOT && before.diffId === layer.diffId ? before.scopes : [];
    const record: LayerRecord = { diffId: layer.diffId, boot: BOOT, scopes: [...new Set([...known, scope])] };
    const temporary = path.join(work, `layer-${layer.digest.slice('sha256:'.length)}.json`);
    await writeFile(temporary, JSON.stringify(record), { mode: 0o600 });
    await rename(temporary, this.#record(layer.digest));
    return archive;
  }

  async list(): Promise<StoredLayer[]> {
    const layers = [];
    for (const name of await readdir(this.#dir)) {
      if (!ARCHIVE.test(name)) continue;
      const file = path.join(this.#dir, name);
      const facts = await stat(file).catch(() => undefined);
      if (facts) {
        const { size: sizeBytes, mtimeMs: usedMs, nlink } = facts;
        layers.push({ path: file, sizeBytes, usedMs, linked: nlink > 1 });
      }
    }
    return layers;
  }

  /** Removes records of layers that are gone, and all layers of an earlier boot. */
  async sweep(): Promise<void> {
    const names = await readdir(this.#dir);
    const archives = new Set(names.filter((name) => ARCHIVE.test(name)));
    const named = new Set<string>();
    for (const name of names.filter((one) => one.endsWith('.json'))) {
      const record = await this.#read(`sha256:${name.slice(0, -'.json'.length)}`);
      const archive = record && `${record.diffId.slice('sha256:'.length)}.tar`;
      if (record?.boot === BOOT && archive !== undefined && archives.has(archive)) named.add(archive);
      else await rm(path.join(this.#dir, name), { force: true });
    }
    const youngest = Date.now() - UNNAMED_MS;
    for (const name of names.filter((one) => one.endsWith('.index'))) {
      if (!archives.has(name.replace(/\.index$/, '.tar')))
        await rm(path.join(this.#dir, name), { force: true });
    }
    for (const name of archives) {
      if (named.has(name)) continue;
      const file = path.join(this.#dir, name);
      const facts = await stat(file).catch(() => undefined);
      // The record of one that has just been made follows.
      if (facts && facts.ctimeMs < youngest) await rm(file, { force: true });
    }
  }

  async #read(digest: string): Promise<LayerRecord | undefined> {
    if (!isImageDigest(digest)) return undefined;
    try {
      const record = JSON.parse(await readFile(this.#record(digest), 'utf8')) as LayerRecord;
      return isImageDigest(record.diffId) && Array.isArray(record.scopes) ? record : undefined;
    } catch (error) {
      if (isMissing(error) || error instanceof SyntaxError) return undefined;
      throw error;
    }
  }

  #archive(diffId: string): string {
    return path.join(this.#dir, `${diffId.slice('sha256:'.length)}.tar`);
  }

  #record(digest: string): string {
    return path.join(this.#dir, `${digest.slice('sha256:'.length)}.json`);
  }
}

function indexFile(archive: string): string {
  return archive.replace(/\.tar$/, '.index');
}

const UNNAMED_MS = 60_000;
