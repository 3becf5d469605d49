import type { Socket } from 'node:net';

/** A connection on which nothing moves either way for this long is closed; both ends are probed before. */
const IDLE_MS = 3_600_000;

/**
 * Passes bytes on between two connected sockets that may be half-open. Each direction ends by itself, and a slow reader slows its
 * writer. The caller ends both with `abort` on errors.
 */
export function splice(one: Socket, other: Socket, abort: () => void): void {
  const idle = setTimeout(abort, IDLE_MS);
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.on('data', () => idle.refresh());
    from.once('close', () => {
      // What was read is still to be delivered, to a peer that may never take it; nothing more will come.
      if (to.destroyed) clearTimeout(idle);
      else to.destroySoon();
    });
    from.on('drain', () => idle.refresh());
    from.pipe(to);
  }
}
