import { copyFile, mkdir, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { syncPath } from '../disk/sync-path.ts';

/** What an entry's record is called in its folder. */
const RECORD = 'record.json';
const ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
/** `<id>-<time>`, the time in UTC as `20260131T235959Z`. */
const ENTRY = /^(.+)-(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})Z$/;

export interface QuarantineOptions {
  /** Absolute; one folder an entry. */
  folder: string;
  /** Absolute, on the same file system: the folders that entries come from and go back to, each named by its id. */
  source: string;
  log: Logger;
}

export interface QuarantineEntry {
  id: string;
  /** Name of its folder. */
  name: string;
  /** When it was put here, in milliseconds since 1970. */
  since: number;
}

/**
 * Persistent bytes that control does not name any more. They keep their content and lose their place, so that a wrong
 * database or an older backup costs nothing that its operator does not notice within days.
 */
export class Quarantine {
  readonly #options: QuarantineOptions;
  /** The newest entry of each id. */
  readonly #entries = new Map<string, QuarantineEntry>();

  constructor(options: QuarantineOptions) {
    this.#options = options;
  }

  /** Reads what an earlier runner has left. Before anything else of it is called. */
  async open(): Promise<void> {
    for (const entry of await this.#list()) this.#entries.set(entry.id, entry);
  }

  /** Oldest first. */
  get entries(): readonly QuarantineEntry[] {
    return [...this.#entries.values()].sort((a, b) => a.since - b.since);
  }

  has(id: string): boolean {
    return this.#entries.has(id);
  }

  /**
   * Moves `source/<id>` here. Nothing may have its files open for writing.
   * @param recordPath copied into the entry, if it exists
   * @returns false when there is no such folder
   */
  async park(id: string, recordPath?: string): Promise<boolean> {
    const { folder, source } = this.#options;
    const from = join(source, checkedId(id));
    if (!(await exists(from))) return false;
    if (recordPath !== undefined) {
      await copyFile(recordPath, join(from, RECORD)).then(() => syncPath(join(from, RECORD)), ignoreAbsent);
    }
    await syncPath(from);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const since = Math.floor(Date.now() / 1000) * 1000;
    const name = `${id}-${timestamp(since)}`;
    await rename(from, join(folder, name));
    await Promise.all([syncPath(source), syncPath(folder)]);
    this.#entries.set(id, { id, name, since });
    return true;
  }

  /** The record of an entry as it was parked; undefined when it has none. */
  async readRecord(id: string): Promise<string | undefined> {
    const entry = this.#entries.get(id);
    if (entry === undefined) return undefined;
    return await readFile(join(this.#options.folder, entry.name, RECORD), 'utf8').catch(ignoreAbsent);
  }

  /** Moves an entry back to where it came from. @returns false when there is none. @throws when its place is taken */
  async restore(id: string): Promise<boolean> {
    const { folder, source } = this.#options;
    const entry = this.#entries.get(id);
    if (entry === undefined) return false;
    const to = join(source, checkedId(id));
    if (await exists(to)) throw new Error(`${to} exists already: ${entry.name} stays in quarantine`);
    await mkdir(source, { recursive: true, mode: 0o700 });
    await rename(join(folder, entry.name), to);
    await Promise.all([syncPath(source), syncPath(folder)]);
    this.#entries.delete(id);
    await rm(join(to, RECORD), { force: true });
    return true;
  }

  /** Removes, for good, what has been here for longer. @returns what it removed */
  async purge(maxAgeMs: number): Promise<QuarantineEntry[]> {
    const old = (await this.#list()).filter(({ since }) => Date.now() - since > maxAgeMs);
    for (const entry of old) {
      this.#options.log.warn(
        { id: entry.id, entry: entry.name },
        'an entry of the quarantine has expired; removing it for good',
      );
      await rm(join(this.#options.folder, entry.name), { recursive: true, force: true });
      if (this.#entries.get(entry.id)?.name === entry.name) this.#entries.delete(entry.id);
    }
    return old;
  }

  async #list(): Promise<QuarantineEntry[]> {
    const names = await readdir(this.#options.folder).catch(() => [] as string[]);
    return names
      .flatMap((name) => {
        const match = ENTRY.exec(name);
        if (match === null) return [];
        const [, id = '', ...parts] = match;
        const [year = 0, month = 1, ...rest] = parts.map(Number);
        const [day = 1, hour = 0, minute = 0, second = 0] = rest;
        return [{ id, name, since: Date.UTC(year, month - 1, day, hour, minute, second) }];
      })
      .sort((a, b) => a.since - b.since);
  }
}

function timestamp(ms: number): string {
  return new Date(ms)
    .toISOString()
    .replace(/\.\d+Z$/, 'Z')
    .replaceAll(/[-:]/g, '');
}

function checkedId(id: string): string {
  if (!ID.test(id)) throw new Error(`not an id: ${JSON.stringify(id)}`);
  return id;
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(ignoreAbsent)) !== undefined;
}

function ignoreAbsent(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') throw error;
}
