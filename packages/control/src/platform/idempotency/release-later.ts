/** Releases keys of interrupted requests when the database answers again: otherwise they would get 409 until their lease ends. */
import { setTimeout as sleep } from 'node:timers/promises';
import { isDatabaseUnavailable, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { KEYS, type Attempt } from './attempts.ts';

const RETRY_MS = 500;
/** More than a server works on. Keys beyond this wait for the end of their leases. */
const WAITING_MAX = 10_000;

export type ReleaseLater = (attempt: Attempt) => void;

/** @param leaseMs after which a key is free anyway */
export function createReleaseLater({ pool }: Database, leaseMs: number, log: Logger): ReleaseLater {
  let waiting: (Attempt & { until: number })[] = [];
  let running = false;

  const run = async (): Promise<void> => {
    while (waiting.length > 0) {
      await sleep(RETRY_MS, undefined, { ref: false });
      if (pool.ending) return;
      const now = performance.now();
      const batch = waiting.filter(({ until }) => until > now);
      waiting = [];
      try {
        // An attempt that never began, or was recorded, is left alone.
        await KEYS.renew(pool, batch, 0);
      } catch (error) {
        if (isDatabaseUnavailable(error)) waiting.push(...batch);
        else log.error({ err: error }, 'Idempotency-Keys of interrupted requests could not be released');
      }
    }
  };

  return (attempt) => {
    if (waiting.length >= WAITING_MAX) return;
    waiting.push({ ...attempt, until: performance.now() + leaseMs });
    if (running) return;
    running = true;
    void run().finally(() => (running = false));
  };
}
