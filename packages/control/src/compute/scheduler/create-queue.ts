import { FairShare } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';

const PENDING = statement<{ id: string; org_id: string }>(
  'schedule-pending-ids',
  `select s.id, (select p.org_id from projects p where p.id = s.project_id) as org_id from sandboxes s
    where s.status = 'pending' order by s.created_at limit $1`,
);

/** A place in the queue. One of both is called, once. */
export interface QueuePlace {
  /** The sandbox was inserted. */
  taken(): void;
  /** The sandbox was not inserted, and will not be. */
  withdraw(): void;
}

export interface CreateQueueLimits {
  /** Sandboxes that may wait for a host. */
  most: number;
  /** An organization may have this many times as many places as are free. */
  share: number;
}

/** Why no more are admitted. The start of a sentence. */
export interface QueueRefusal {
  refused: string;
}

/**
 * Counts the sandboxes that wait for a host without a query for each create.
 *
 * No organization can fill the queue: they share its places (`FairShare`).
 */
export class CreateQueue {
  readonly #database: Database;
  readonly #limits: CreateQueueLimits;
  /** The organization of each. */
  #ids = new Map<string, string>();
  #places: FairShare<string>;
  /** Admitted too late for the query in progress to have seen them. */
  readonly #recent = new Map<string, string>();
  /** Of these, the ones that are not inserted yet. */
  readonly #coming = new Set<string>();
  /** Resolved when there are none. */
  #allInserted: PromiseWithResolvers<void> | undefined;

  constructor(database: Database, limits: CreateQueueLimits) {
    this.#database = database;
    this.#limits = limits;
    this.#places = new FairShare(limits.most, limits.share);
  }

  get waiting(): number {
    return this.#ids.size;
  }

  /** Takes a place for a sandbox of this organization, or returns the refusal. */
  admit(id: string, orgId: string): QueuePlace | QueueRefusal {
    const { most } = this.#limits;
    if (this.#places.free === 0) {
      return {
        refused: `${this.waiting} sandboxes are already waiting for a host, of at most ${most}`,
      };
    }
    if (!this.#places.mayTake(orgId)) {
      return {
        refused:
          `${this.#places.of(orgId)} sandboxes of this organization are already waiting for a host, which is its fair share of the ` +
          `${most} that may wait in total (${this.waiting} do)`,
      };
    }
    this.#ids.set(id, orgId);
    this.#places.take(orgId);
    this.#recent.set(id, orgId);
    this.#coming.add(id);
    const leave = (): void => {
      this.#coming.delete(id);
      if (this.#coming.size === 0) this.#allInserted?.resolve();
    };
    return {
      taken: leave,
      withdraw: () => {
        leave();
        this.#recent.delete(id);
        if (this.#ids.delete(id)) this.#places.release(orgId);
      },
    };
  }

  /** Resolves when all that are admitted have been inserted, at the latest after so many milliseconds. */
  async untilInserted(mostMs: number): Promise<void> {
    if (this.#coming.size === 0) return;
    this.#allInserted = Promise.withResolvers();
    const timer = setTimeout(this.#allInserted.resolve, mostMs);
    await this.#allInserted.promise;
    clearTimeout(timer);
  }

  /** Reads the queue again: some were placed, and other servers have admitted some. One call at a time. */
  async refresh(): Promise<void> {
    const known = [...this.#recent.keys()].filter((id) => !this.#coming.has(id));
    const rows = await queryAll(this.#database.pool, PENDING, [this.#limits.most]);
    for (const id of known) this.#recent.delete(id);
    this.#ids = new Map([...rows.map(({ id, org_id }) => [id, org_id] as const), ...this.#recent]);
    this.#places = new FairShare(this.#limits.most, this.#limits.share);
    for (const org of this.#ids.values()) this.#places.take(org);
  }
}
