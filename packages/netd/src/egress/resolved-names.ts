/** Names of one sandbox that are remembered, and addresses of each. */
const NAMES_MAX = 1024;
const ADDRESSES_MAX = 256;

/** Which addresses the name server gave a sandbox for which name, and until when: domain rules match only those. */
export class ResolvedNames {
  /** Until when, by `performance.now()`; in the order of the last answer. */
  readonly #names = new Map<string, Map<string, number>>();

  add(name: string, addresses: readonly { address: string; seconds: number }[]): void {
    const now = performance.now();
    const known = this.#names.get(name) ?? new Map<string, number>();
    this.#names.delete(name);
    for (const [address, until] of known) if (until < now) known.delete(address);
    for (const { address, seconds } of addresses) {
      if (!known.has(address) && known.size >= ADDRESSES_MAX) break;
      known.set(address, Math.max(known.get(address) ?? 0, now + seconds * 1000));
    }
    if (this.#names.size >= NAMES_MAX) {
      const [oldest] = this.#names.keys();
      if (oldest !== undefined) this.#names.delete(oldest);
    }
    this.#names.set(name, known);
  }

  has(name: string, address: string): boolean {
    return (this.#names.get(name)?.get(address) ?? 0) > performance.now();
  }
}
