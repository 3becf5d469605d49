/**
 * The order of those that wait for a host: organizations take turns, from one round to the next. Of the first request of each, the
 * one whose organization was served longest ago comes first: one that floods, and whose oldest request is always the oldest of all,
 * does not get each place that becomes free.
 */

interface Request {
  org_id: string;
  spot: boolean;
  /** Its number among those of its organization, from 1. */
  turn: number;
}

/** Organizations that are remembered; beyond these, the one that was served longest ago counts as never served. */
const REMEMBERED = 10_000;

/** Kept in the memory of each server: with several, each gives turns of its own. */
export class Turns {
  /** When each was served last: the number of the placement, in ascending order. */
  readonly #served = new Map<string, number>();
  #placements = 0;

  /**
   * @param requests in the order of their creation, by turn
   * @returns those that are not spot first: the capacity of evicted spot sandboxes must not go to other spot sandboxes
   */
  order<R extends Request>(requests: readonly R[]): R[] {
    const servedAt = ({ org_id: org }: R): number => this.#served.get(org) ?? 0;
    return requests.toSorted(
      (a, b) => Number(a.spot) - Number(b.spot) || a.turn - b.turn || servedAt(a) - servedAt(b),
    );
  }

  served(orgId: string): void {
    this.#served.delete(orgId);
    this.#served.set(orgId, ++this.#placements);
    if (this.#served.size <= REMEMBERED) return;
    const [oldest] = this.#served.keys();
    if (oldest !== undefined) this.#served.delete(oldest);
  }
}
