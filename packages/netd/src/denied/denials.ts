import { NETD_DENIALS_MAX, type NetdDenial } from '@releap/contract/netd';

export type Denial = Pick<NetdDenial, 'protocol' | 'address' | 'port' | 'name' | 'reason'>;

/**
 * What one sandbox was denied, the latest kinds of it: a guest decides how many there are, so the one that has not been
 * seen for longest makes place for a new one.
 */
export class Denials {
  /** In the order of their last time. */
  readonly #kinds = new Map<string, NetdDenial>();
  readonly #max: number;

  constructor(max = NETD_DENIALS_MAX) {
    this.#max = max;
  }

  add(denial: Denial, now = Date.now()): void {
    const { protocol, address, port, name, reason } = denial;
    const key = [protocol, address, port, name, reason].join(' ');
    const known = this.#kinds.get(key);
    this.#kinds.delete(key);
    if (known === undefined && this.#kinds.size >= this.#max) {
      const [oldest] = this.#kinds.keys();
      if (oldest !== undefined) this.#kinds.delete(oldest);
    }
    this.#kinds.set(key, {
      ...denial,
      count: (known?.count ?? 0) + 1,
      first_ms: known?.first_ms ?? now,
      last_ms: now,
    });
  }

  list(): NetdDenial[] {
    return [...this.#kinds.values()];
  }
}
