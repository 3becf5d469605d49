import type { Socket } from 'node:net';
import type { Transform } from 'node:stream';

/** A connection on which nothing moves either way for this long is closed; both ends are probed before. */
const IDLE_MS = 3_600_000;

/**
 * Passes bytes on between two connected sockets that may be half-open. Each direction ends by itself, and a slow reader slows its
 * writer. The caller ends both with `abort` on errors.
 * @param through what `one` sends goes through it
 */
export function splice(one: Socket, other: Socket, abort: () => void, through?: Transform): void {
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
    if (from === one && through !== undefined) from.pipe(through).pipe(to);
    else from.pipe(to);
  }
}
