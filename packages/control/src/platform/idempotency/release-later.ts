/** Releases keys of interrupted requests when the database answers again: otherwise they would get 409 until their lease ends. */
import { isDatabaseUnavailable, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { createWriteQueue } from '../work/write-queue.ts';
import { KEYS, type Attempt } from './attempts.ts';

export type ReleaseLater = (attempt: Attempt) => void;

/** @param leaseMs after which a key is free anyway */
export function createReleaseLater({ pool }: Database, leaseMs: number, log: Logger): ReleaseLater {
  const queue = createWriteQueue<Attempt & { until: number }>({
    async write(attempts) {
      if (pool.ending) return;
      const now = performance.now();
      try {
        // An attempt that never began, or was recorded, is left alone.
        await KEYS.renew(
          pool,
          attempts.filter(({ until }) => until > now),
          0,
        );
      } catch (error) {
        if (isDatabaseUnavailable(error)) throw error;
        log.error({ err: error }, 'Idempotency-Keys of interrupted requests could not be released');
      }
    },
    // More than a server works on. Keys beyond this wait for the end of their leases.
    batch: 10_000,
    most: 10_000,
    retryMs: 500,
    onError: (error, waiting) =>
      log.debug({ err: error, waiting }, 'Idempotency-Keys of interrupted requests cannot be released now'),
  });
  return (attempt) => {
    queue.add([{ ...attempt, until: performance.now() + leaseMs }]);
    queue.kick();
  };
}
