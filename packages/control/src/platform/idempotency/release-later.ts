/** Releases keys of interrupted requests when the database answers again: otherwise they would get 409 until their lease ends. */
import { setTimeout as sleep } from 'node:timers/promises';
import { isDatabaseUnavailable, queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';

/** An attempt at a request. The salt tells it from one of another server under the same key. */
export interface Attempt {
  id: Buffer;
  attempt: number;
  salt: Buffer;
}

/** $1 ids, $2 attempts, $3 salts. An attempt that never began, or was recorded, is left alone. */
const RELEASE = statement(
  'idempotency-release-later',
  `update idempotency_keys as k set lease_until = now()
     from unnest($1::bytea[], $2::integer[], $3::bytea[]) as gone(id, attempt, salt)
    where k.id = gone.id and k.attempt = gone.attempt and k.salt = gone.salt and k.sealed is null`,
);
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
        await queryAll(pool, RELEASE, [
          batch.map(({ id }) => id),
          batch.map(({ attempt }) => attempt),
          batch.map(({ salt }) => salt),
        ]);
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
