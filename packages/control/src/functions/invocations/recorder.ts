/** Records ended invocations in batches. */
import { isDatabaseUnavailable, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import { createWriteQueue } from '../../platform/work/write-queue.ts';
import type { Prices } from '../../tenancy/billing/prices.ts';
import { recordFinished, type FinishedInvocation } from './store.ts';

export interface Recorder {
  /**
   * Resolves when it is recorded, with false if another attempt owns it by now or the function was deleted. While the database
   * is unavailable it tries again.
   */
  record(row: FinishedInvocation): Promise<boolean>;
  /** Ends the retries: what is not recorded then rejects. */
  close(): void;
}

interface Entry {
  row: FinishedInvocation;
  resolve: (recorded: boolean) => void;
  reject: (error: unknown) => void;
}

export function createRecorder(on: Queryable, prices: Prices, log: Logger): Recorder {
  let isClosed = false;

  async function write(batch: readonly Entry[]): Promise<void> {
    try {
      const rows = batch.map(({ row }) => row);
      const recorded = await recordFinished(on, prices, rows);
      for (const { row, resolve } of batch) resolve(recorded.has(row.id));
    } catch (error) {
      if (!isClosed && isDatabaseUnavailable(error)) throw error;
      // One of them is at fault.
      if (batch.length > 1) for (const entry of batch) await write([entry]);
      else for (const { reject } of batch) reject(error);
    }
  }

  const queue = createWriteQueue<Entry>({
    write,
    batch: 200,
    most: Number.POSITIVE_INFINITY, // no more than are in progress
    retryMs: 500,
    onError: (error, count) => log.warn({ err: error, count }, 'ended invocations cannot be recorded now'),
  });

  return {
    async record(row) {
      const { promise, resolve, reject } = Promise.withResolvers<boolean>();
      queue.add([{ row, resolve, reject }]);
      // After all that end in this turn.
      setImmediate(() => queue.kick());
      return await promise;
    },
    close() {
      isClosed = true;
      void queue.flush();
    },
  };
}
