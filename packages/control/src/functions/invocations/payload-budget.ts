/** Bounds the memory of large payloads that are being sent: a gateway reads a body only once an instance is there. */

/** Of all organizations, and of one. */
const TOTAL_BYTES = 64 * 1024 * 1024;
const SHARE_BYTES = 16 * 1024 * 1024;

interface Waiter {
  key: string;
  bytes: number;
  start: () => void;
}

export class PayloadBudget {
  readonly #held = new Map<string, number>();
  readonly #waiting = new Set<Waiter>();
  #total = 0;

  /**
   * Resolves once there is memory for this payload. First come, first served, except those of organizations that have their share.
   * @param key the organization
   * @returns gives the memory back; more calls do nothing
   */
  async take(key: string, bytes: number, signal: AbortSignal): Promise<() => void> {
    if (!this.#fits(key, bytes)) {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const waiter: Waiter = { key, bytes, start: resolve };
      const onAbort = (): void => {
        this.#waiting.delete(waiter);
        reject(signal.reason as Error);
      };
      signal.throwIfAborted();
      signal.addEventListener('abort', onAbort, { once: true });
      this.#waiting.add(waiter);
      await promise.finally(() => signal.removeEventListener('abort', onAbort));
    } else this.#add(key, bytes);
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.#add(key, -bytes);
      for (const waiter of this.#waiting) {
        if (!this.#fits(waiter.key, waiter.bytes)) continue;
        this.#waiting.delete(waiter);
        this.#add(waiter.key, waiter.bytes);
        waiter.start();
      }
    };
  }

  /** One payload of an organization always fits its share. */
  #fits(key: string, bytes: number): boolean {
    const held = this.#held.get(key) ?? 0;
    return this.#total + bytes <= TOTAL_BYTES && (held === 0 || held + bytes <= SHARE_BYTES);
  }

  #add(key: string, bytes: number): void {
    this.#total += bytes;
    const held = (this.#held.get(key) ?? 0) + bytes;
    if (held === 0) this.#held.delete(key);
    else this.#held.set(key, held);
  }
}
