/** Pieces of work in progress on this server: organizations share its places, and its stop waits for them. */
import { FairShare } from '@releap/contract';
import { settledWithin } from './settled-within.ts';

export class InFlight {
  /** By organization. */
  readonly places: FairShare<string>;
  readonly #running = new Set<Promise<void>>();

  /** @param most places */
  constructor(most: number) {
    this.places = new FairShare(most);
  }

  get size(): number {
    return this.#running.size;
  }

  /** Takes a place until the work has ended; the caller has asked whether the organization may have one. The work must not reject. */
  run(orgId: string, work: () => Promise<void>, onEnd?: () => void): void {
    this.places.take(orgId);
    const running = work().finally(() => {
      this.#running.delete(running);
      this.places.release(orgId);
      onEnd?.();
    });
    this.#running.add(running);
  }

  /** Resolves when all have ended, at most after so many milliseconds. */
  async settled(ms = Infinity): Promise<void> {
    await settledWithin([...this.#running], ms);
  }
}
