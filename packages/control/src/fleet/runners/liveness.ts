/**
 * Whether this server has listened to runners for long enough to call a silent one lost. While the database cannot be
 * reached no heartbeat is recorded, so silence counts only from its return.
 */
export interface Liveness {
  /** Heartbeats were recorded just now. */
  succeeded(): void;
  readonly listening: boolean;
}

export function createLiveness(lostAfterMs: number): Liveness {
  let since = performance.now();
  // The wall clock may be set, by hours; the monotonic clock does not count a suspension of the machine. So: both.
  let last = { monotonic: performance.now(), wall: Date.now() };

  const gap = (): number => Math.max(performance.now() - last.monotonic, Date.now() - last.wall);

  return {
    succeeded() {
      if (gap() > lostAfterMs / 2) since = performance.now();
      last = { monotonic: performance.now(), wall: Date.now() };
    },
    get listening() {
      return gap() <= lostAfterMs / 2 && performance.now() - since >= lostAfterMs;
    },
  };
}
