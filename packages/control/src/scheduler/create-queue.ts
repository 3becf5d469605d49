import { all, statement, type Database } from '@releap/database';

const PENDING_IDS = statement<{ id: string }>(
  'schedule-pending-ids',
  `select id from sandboxes where status = 'pending' order by created_at limit $1`,
);

/** A place in the queue. One of both is called, once. */
export interface QueuePlace {
  /** The sandbox is in the database. */
  taken(): void;
  /** It is not, and never will be. */
  withdraw(): void;
}

/** The sandboxes that wait for a host, known without asking the database at each create: no more than `most` may. */
export class CreateQueue {
  readonly #database: Database;
  readonly #most: number;
  #ids = new Set<string>();
  /** Those of which a look into the database that is under way need not know. */
  readonly #recent = new Set<string>();
  /** Those of them that are not in the database yet. */
  readonly #coming = new Set<string>();

  constructor(database: Database, most: number) {
    this.#database = database;
    this.#most = most;
  }

  get waiting(): number {
    return this.#ids.size;
  }

  /** Undefined when no more may wait. */
  admit(id: string): QueuePlace | undefined {
    if (this.waiting >= this.#most) return undefined;
    for (const set of [this.#ids, this.#recent, this.#coming]) set.add(id);
    return {
      taken: () => {
        this.#coming.delete(id);
      },
      withdraw: () => {
        for (const set of [this.#ids, this.#recent, this.#coming]) set.delete(id);
      },
    };
  }

  /** Looks again: some have got a host, and other servers have taken some in. One look after the other. */
  async refresh(): Promise<void> {
    const known = [...this.#recent].filter((id) => !this.#coming.has(id));
    const rows = await all(this.#database.pool, PENDING_IDS, [this.#most]);
    for (const id of known) this.#recent.delete(id);
    this.#ids = new Set([...rows.map(({ id }) => id), ...this.#recent]);
  }
}
