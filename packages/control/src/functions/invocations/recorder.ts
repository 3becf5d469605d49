/** Records ended invocations in batches: those that end while a statement runs are recorded by the next one. */
import { setTimeout as sleep } from 'node:timers/promises';
import { isDatabaseUnavailable, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import type { Prices } from '../../tenancy/billing/prices.ts';
import { recordFinished, type FinishedInvocation } from './store.ts';

const BATCH = 200;
const RETRY_MS = 500;

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
  const queue: Entry[] = [];
  let isRunning = false;
  const stop = new AbortController();

  async function write(batch: readonly Entry[]): Promise<void> {
    for (;;) {
      try {
        const rows = batch.map(({ row }) => row);
        const recorded = await recordFinished(on, prices, rows);
        for (const { row, resolve } of batch) resolve(recorded.has(row.id));
        return;
      } catch (error) {
        if (!stop.signal.aborted && isDatabaseUnavailable(error)) {
          log.warn({ err: error, count: batch.length }, 'ended invocations cannot be recorded now');
          await sleep(RETRY_MS, undefined, { signal: stop.signal }).catch(() => undefined);
        } else if (batch.length > 1) {
          // One of them is at fault.
          for (const entry of batch) await write([entry]);
          return;
        } else {
          for (const { reject } of batch) reject(error);
          return;
        }
      }
    }
  }

  async function drain(): Promise<void> {
    while (queue.length > 0) await write(queue.splice(0, BATCH));
    isRunning = false;
  }

  return {
    async record(row) {
      const { promise, resolve, reject } = Promise.withResolvers<boolean>();
      queue.push({ row, resolve, reject });
      if (!isRunning) {
        isRunning = true;
        // After all that end in this turn.
        setImmediate(() => void drain());
      }
      return await promise;
    },
    close: () => stop.abort(),
  };
}
