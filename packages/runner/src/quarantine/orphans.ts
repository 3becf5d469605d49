import { mkdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Logger } from 'pino';

/** A sync is refused when it leaves out at least this many of a kind ... */
const ABSENT_MIN = 4;
/** ... and more than this share of all that the host holds of it. */
const ABSENT_SHARE = 0.5;
const CONFIRM_POLL_MS = 2_000;
/** How many ids are written into the log. */
const IDS_LOGGED = 20;

/** What control does not name of a kind. */
export interface OrphansOfKind {
  ids: readonly string[];
  /** How many of them are persistent: only those count. */
  persistent: number;
  /** How many persistent ones the host holds, named or not. */
  total: number;
}

/** A kind of resource that a host manages for control. */
export interface ManagedKind {
  readonly kind: string;
  /** What the last complete sync, and whatever came after it, has not named. */
  orphans(): Promise<OrphansOfKind>;
  /** Ends orphans; their persistent bytes go into the quarantine. */
  park(ids: readonly string[]): void;
}

export interface OrphansOptions {
  kinds: readonly ManagedKind[];
  /** Absolute; `confirm` and `refused.json` lie in it. */
  folder: string;
  log: Logger;
}

/**
 * Decides what becomes of what a complete sync does not name. A few are parked in the quarantine. So many that the sync itself is more
 * likely to be wrong (another database, an older backup) stay as they are, until control names them or the operator makes
 * the file `confirm`.
 */
export class Orphans {
  readonly #options: OrphansOptions;
  #poll: NodeJS.Timeout | undefined;
  #checks: Promise<void> = Promise.resolve();

  constructor(options: OrphansOptions) {
    this.#options = options;
  }

  /** Path of the file by which an operator confirms that what control does not name shall go. */
  get confirmPath(): string {
    return join(this.#options.folder, 'confirm');
  }

  /** A new link begins with a new sync. */
  linked(): void {
    clearInterval(this.#poll);
    this.#poll = undefined;
  }

  /** A complete sync has been taken in. */
  synced(): void {
    this.linked();
    this.#checkNext();
  }

  close(): void {
    this.linked();
  }

  /** Resolves when no check is under way. */
  async idle(): Promise<void> {
    await this.#checks;
  }

  #checkNext(): void {
    this.#checks = this.#checks
      .then(() => this.#check())
      .catch((error: unknown) =>
        this.#options.log.error({ err: error }, 'what control does not name could not be looked at'),
      );
  }

  async #check(): Promise<void> {
    const { kinds, log } = this.#options;
    const found = await Promise.all(kinds.map(async (kind) => ({ kind, ...(await kind.orphans()) })));
    const refused = found.filter(isTooMuch);
    if (refused.length > 0 && !(await this.#isConfirmed())) return await this.#refuse(refused);
    this.linked();
    await Promise.all([rm(this.confirmPath, { force: true }), rm(this.#refusedPath, { force: true })]);
    for (const { kind, ids } of found) {
      if (ids.length === 0) continue;
      log.warn({ kind: kind.kind, ids: ids.slice(0, IDS_LOGGED), count: ids.length }, 'not named by control');
      kind.park(ids);
    }
  }

  async #refuse(refused: readonly (OrphansOfKind & { kind: ManagedKind })[]): Promise<void> {
    const { log } = this.#options;
    // Once a sync: the poll looks again every other second.
    if (this.#poll === undefined) {
      const facts = refused.map(({ kind, ids, persistent, total }) => ({
        kind: kind.kind,
        absent: persistent,
        total,
        ids: ids.slice(0, IDS_LOGGED),
      }));
      log.error(
        { refused: facts, confirm: this.confirmPath },
        'sync refused: control does not name most of what this host holds (is it another database, or an older ' +
          'backup?). Nothing is touched until control names them, or you create the file named by "confirm"',
      );
      await mkdir(dirname(this.#refusedPath), { recursive: true, mode: 0o700 });
      await writeFile(
        this.#refusedPath,
        JSON.stringify({ since: new Date().toISOString(), refused: facts }),
        {
          mode: 0o600,
        },
      );
      this.#poll = setInterval(() => this.#checkNext(), CONFIRM_POLL_MS).unref();
    }
  }

  get #refusedPath(): string {
    return join(this.#options.folder, 'refused.json');
  }

  async #isConfirmed(): Promise<boolean> {
    return await stat(this.confirmPath).then(
      () => true,
      () => false,
    );
  }
}

function isTooMuch({ persistent, total }: OrphansOfKind): boolean {
  return persistent >= ABSENT_MIN && persistent > total * ABSENT_SHARE;
}
