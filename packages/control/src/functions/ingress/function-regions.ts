import { queryOne, statement, type Database } from '@releap/database';

const REGION = statement<{ region: string }>(
  'ingress-function-region',
  'select region from functions where project_id = $1 and name = $2',
);
/** A function keeps its region; another one of its name may be elsewhere. */
const FOUND_MS = 60_000;
/** Bounds the queries for names that do not exist. */
const MISSING_MS = 1_000;
const ENTRIES_MAX = 10_000;

interface Entry {
  region: Promise<string | null>;
  /** On the monotonic clock. */
  until: number;
}

/** Where functions run, so that a warm call needs no query. Concurrent calls of one function share one. */
export class FunctionRegions {
  readonly #database: Database;
  /** The least recently used first. */
  readonly #entries = new Map<string, Entry>();

  constructor(database: Database) {
    this.#database = database;
  }

  /** @returns null for an unknown function */
  find(projectId: string, name: string): Promise<string | null> {
    const key = `${projectId}/${name}`;
    const known = this.#entries.get(key);
    this.#entries.delete(key);
    const entry =
      known !== undefined && known.until > performance.now() ? known : this.#load(projectId, name, known);
    this.#entries.set(key, entry);
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= ENTRIES_MAX) break;
      this.#entries.delete(oldest);
    }
    return entry.region;
  }

  /** @param earlier serves on while the database does not answer */
  #load(projectId: string, name: string, earlier: Entry | undefined): Entry {
    const load = async (): Promise<string | null> => {
      try {
        const row = await queryOne(this.#database.pool, REGION, [projectId, name]);
        if (row === undefined) entry.until = performance.now() + MISSING_MS;
        return row?.region ?? null;
      } catch (error) {
        entry.until = performance.now() + MISSING_MS;
        if (earlier !== undefined) return await earlier.region;
        entry.until = 0;
        throw error;
      }
    };
    const entry: Entry = { region: Promise.resolve(null), until: performance.now() + FOUND_MS };
    entry.region = load();
    return entry;
  }
}
