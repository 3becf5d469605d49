/**
 * Writes in batches what may wait for a moment: what is added while a statement runs is in the next one. What cannot be written waits
 * on, so `write` must do no harm when it is repeated.
 */
import { createWorkLoop } from './work-loop.ts';

export interface WriteQueue<T> {
  /** @returns how many were not taken, because too many wait */
  readonly add: (entries: Iterable<T>) => number;
  /** Begins to write, and returns at once. After a failure it is repeated. */
  readonly kick: () => void;
  /** Resolves when what waits now is written. @throws what `write` has thrown: the entries wait on */
  readonly flush: () => Promise<void>;
  /** Ends the repetitions, and waits for the batch that is being written. */
  readonly close: () => Promise<void>;
}

export interface WriteQueueOptions<T> {
  write: (batch: readonly T[]) => Promise<unknown>;
  /** Most entries that one call of `write` gets. */
  batch: number;
  /** Most entries that wait. */
  most: number;
  /** What an entry tells of: it replaces one that waits and tells of the same. By default none does. */
  key?: (entry: T) => unknown;
  /** From a failure to the next attempt, in milliseconds. */
  retryMs: number;
  /** Of writes that only `kick` has asked for. */
  onError: (error: unknown, waiting: number) => void;
}

export function createWriteQueue<T>(options: WriteQueueOptions<T>): WriteQueue<T> {
  const { write, batch, most, key = (entry: T): unknown => entry, retryMs, onError } = options;
  const waiting = new Map<unknown, T>();
  let retry: NodeJS.Timeout | undefined;
  let isClosed = false;

  const loop = createWorkLoop({
    async step() {
      const entries = [...waiting.entries().take(batch)];
      if (entries.length === 0) return false;
      await write(entries.map(([, entry]) => entry));
      for (const [id, entry] of entries) if (waiting.get(id) === entry) waiting.delete(id);
      return waiting.size > 0;
    },
    onError(error) {
      onError(error, waiting.size);
      if (isClosed) return;
      retry ??= setTimeout(() => {
        retry = undefined;
        loop.kick();
      }, retryMs).unref();
    },
  });

  return {
    add(entries) {
      let refused = 0;
      for (const entry of entries) {
        const id = key(entry);
        if (waiting.size < most || waiting.has(id)) waiting.set(id, entry);
        else refused += 1;
      }
      return refused;
    },
    kick() {
      if (retry === undefined) loop.kick();
    },
    flush: loop.sweep,
    async close() {
      isClosed = true;
      clearTimeout(retry);
      await loop.close();
    },
  };
}
