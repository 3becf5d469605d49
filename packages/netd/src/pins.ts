import type { NetdPin } from '@releap/contract/netd';

/** What one sandbox may have pinned at once is bounded by the firewall's set; this bounds what is remembered of it. */
const REMEMBERED_MAX = 4096;

/** The addresses that are open for one sandbox, so that a name that is asked for again costs the runner nothing. */
export class Pins {
  /** Until when, by `performance.now()`. */
  readonly #open = new Map<string, number>();
  readonly #ask: (pins: NetdPin[]) => Promise<void>;

  /** @param ask has addresses opened; resolves when they are */
  constructor(ask: (pins: NetdPin[]) => Promise<void>) {
    this.#ask = ask;
  }

  /** Resolves when all these are open for at least as long as they say. */
  async pin(pins: readonly NetdPin[]): Promise<void> {
    const now = performance.now();
    const fresh = pins.filter(
      ({ address, seconds }) => (this.#open.get(address) ?? 0) < now + seconds * 1000,
    );
    if (fresh.length === 0) return;
    // Twice the time asked for, so that a name that is asked for all the time is not pinned all the time.
    const doubled = fresh.map(({ address, seconds }) => ({ address, seconds: seconds * 2 }));
    await this.#ask(doubled);
    for (const [address, until] of this.#open) if (until < now) this.#open.delete(address);
    if (this.#open.size + doubled.length > REMEMBERED_MAX) this.#open.clear();
    for (const { address, seconds } of doubled) this.#open.set(address, now + seconds * 1000);
  }

  forget(): void {
    this.#open.clear();
  }
}
