/**
 * `Idempotency-Key`: a creating request that is sent again gets the recorded response and does nothing.
 *
 * The first request inserts the key's row and runs; concurrent ones wait for its response. A refusal is not recorded:
 * nothing was created, and the same request may succeed later. A server that dies leaves a lease that expires; the next
 * attempt then runs the request again with the same ids and tokens (`IdGenerator`), so that existing rows are found and
 * not inserted twice. Operations without deterministic ids are not run again: the client gets a 409 that says that the
 * outcome is unknown.
 */
import { createHash, createHmac } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  ApiError,
  badRequest,
  conflict,
  IDEMPOTENCY_KEY_CHARS,
  IDEMPOTENCY_TTL_MS,
  isIdempotencyKey,
  quote,
} from '@releap/contract';
import { isDatabaseUnavailable, queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { SKIP_LOCKED } from '../work/work-table.ts';
import { KEYS, type Attempt } from './attempts.ts';
import { newSalt, seeded, type IdGenerator } from './id-generator.ts';
import { createReleaseLater } from './release-later.ts';
import { createSealing } from './sealing.ts';

export interface IdempotentRequest {
  /** The namespace of the key: keys of different callers are independent. */
  caller: string;
  /** The header's raw value. */
  key: string;
  /** Method, path and body. A different request under the same key is refused. */
  request: unknown;
}

export interface Idempotency {
  /**
   * Runs the work, or returns its recorded response.
   * @param work generates all its ids and tokens with the given `IdGenerator`, because it may be run again
   * @throws 400, 409, and what the work throws
   */
  run(
    request: IdempotentRequest,
    work: (ids: IdGenerator) => Promise<unknown>,
  ): Promise<{ answer: unknown; replayed: boolean }>;
  /** Removes expired keys. */
  sweep(): Promise<void>;
}

export interface IdempotencyOptions {
  database: Database;
  /** Shared by all servers of the installation. */
  secret: () => Promise<string>;
  log: Logger;
  /** How long a server may work on one request before another attempt takes over, in milliseconds. */
  leaseMs?: number;
  /** How long a concurrent request waits for the response of the first, in milliseconds. */
  patienceMs?: number;
}

interface Row {
  request_hash: Buffer;
  salt: Buffer;
  attempt: number;
  working: boolean;
  sealed: Buffer | null;
}

const BEGIN = statement<{ attempt: number }>(
  'idempotency-begin',
  `insert into idempotency_keys as k (id, request_hash, salt, lease_until, expires_at)
   values ($1, $2, $3, now() + $4 * interval '1 millisecond', now() + $5 * interval '1 millisecond')
   on conflict (id) do update set request_hash = excluded.request_hash, salt = excluded.salt, attempt = 1, sealed = null,
     lease_until = excluded.lease_until, created_at = now(), expires_at = excluded.expires_at
   where k.expires_at <= now()
   returning attempt`,
);

const READ = statement<Row>(
  'idempotency-read',
  `select request_hash, salt, attempt, sealed, coalesce(lease_until > now(), false) as working
     from idempotency_keys where id = $1`,
);

/** $1 lease in milliseconds, $2 id, $3 the attempt before */
const TAKE_OVER = KEYS.claiming<Attempt>('take-over', {
  pick: `select w.id from idempotency_keys w where w.id = $2 and w.attempt = $3 and ${KEYS.expired('w')} ${SKIP_LOCKED}`,
});
/** $1 to $3 attempt, $4 response */
const FINISH = KEYS.changing('finish', { set: `sealed = ${KEYS.next}, lease_until = null` });
const FORGET = KEYS.changing('forget', {});

/** $1 most rows */
const EXPIRED = statement<{ n: number }>(
  'idempotency-expired',
  `with gone as (
     delete from idempotency_keys where id in (select id from idempotency_keys where expires_at <= now() limit $1) returning 1
   ) select count(*)::integer as n from gone`,
);
const EXPIRED_BATCH = 1000;

const LEASE_MS = 60_000;
const PATIENCE_MS = 5_000;
/** Responses of creating requests are small; larger ones are not recorded. */
const ANSWER_CHARS = 64 * 1024;

export function createIdempotency(options: IdempotencyOptions): Idempotency {
  const { database, log, leaseMs = LEASE_MS, patienceMs = PATIENCE_MS } = options;
  const releaseLater = createReleaseLater(database, leaseMs, log);

  return {
    async run({ caller, key, request }, work) {
      if (!isIdempotencyKey(key)) {
        throw badRequest(
          `header Idempotency-Key must be 1 to ${IDEMPOTENCY_KEY_CHARS} visible ASCII characters, but was ${quote(key)}`,
        );
      }
      const sealing = createSealing(await options.secret());
      const id = digest(`${caller}\n${key}`);
      // Keyed, so that readers of the database cannot guess the request from its digest.
      const requestHash = createHmac('sha256', key).update(canonical(request), 'utf8').digest();
      const until = performance.now() + patienceMs;
      for (let pause = 10; ; pause = Math.min(250, pause * 2)) {
        const salt = newSalt();
        const begin = [id, requestHash, salt, leaseMs, IDEMPOTENCY_TTL_MS];
        const begun = await take(1, salt, queryOne(database.pool, BEGIN, begin));
        if (begun !== undefined) return await perform({ id, attempt: 1, salt });
        const row = await queryOne(database.pool, READ, [id]);
        // Absent: it was refused or has just expired.
        if (row !== undefined && !row.request_hash.equals(requestHash)) {
          throw conflict(
            `Idempotency-Key ${quote(key)} was used for another request: use a new key, or send exactly the same request`,
            'idempotency_key_reused',
          );
        }
        if (row !== undefined && row.sealed !== null) return replay(row.sealed, row.salt);
        if (row !== undefined && !row.working) {
          const taking = queryOne(database.pool, TAKE_OVER, [leaseMs, id, row.attempt]);
          const taken = await take(row.attempt + 1, row.salt, taking);
          if (taken !== undefined) return await perform(taken);
        }
        if (performance.now() >= until) {
          throw conflict(
            `a request with Idempotency-Key ${quote(key)} is still in progress: try again`,
            'idempotency_in_progress',
          );
        }
        await sleep(pause);
      }

      /** A statement that fails with its connection may have taken the key. */
      async function take<T>(attempt: number, salt: Buffer, taking: Promise<T>): Promise<T> {
        try {
          return await taking;
        } catch (error) {
          if (isDatabaseUnavailable(error)) releaseLater({ id, attempt, salt });
          throw error;
        }
      }

      function replay(sealed: Buffer, salt: Buffer): { answer: unknown; replayed: boolean } {
        const text = sealing.open(key, salt, sealed);
        if (text === null || text === '') {
          throw conflict(
            `the request with Idempotency-Key ${quote(key)} succeeded before, and its response is no longer available`,
            'idempotency_response_gone',
          );
        }
        return { answer: JSON.parse(text) as unknown, replayed: true };
      }

      async function perform(claim: Attempt): Promise<{ answer: unknown; replayed: boolean }> {
        const { attempt, salt } = claim;
        let answer: unknown;
        try {
          answer = await work(seeded(sealing.seed(key, salt), attempt > 1));
        } catch (error) {
          // A refusal has written nothing, so the key is free again. Any other failure may have.
          const refused = error instanceof ApiError && error.cause === undefined && error.status !== 500;
          const released =
            refused && attempt === 1
              ? queryAll(database.pool, FORGET, KEYS.values([claim]))
              : KEYS.renew(database.pool, [claim], 0);
          await released.catch((cause: unknown) =>
            postpone(cause, 'an Idempotency-Key could not be released'),
          );
          throw error;
        }
        const text = JSON.stringify(answer) ?? '';
        const sealed = sealing.seal(key, salt, text.length > ANSWER_CHARS ? '' : text);
        // If this write fails, the next attempt finds the created rows by their ids.
        await queryAll(database.pool, FINISH, [...KEYS.values([claim]), sealed]).catch((cause: unknown) =>
          postpone(cause, 'the response to an Idempotency-Key could not be recorded'),
        );
        return { answer, replayed: false };

        function postpone(cause: unknown, what: string): void {
          log.warn({ err: cause }, `${what}: the same request may get 409 until the lease ends`);
          releaseLater(claim);
        }
      }
    },
    async sweep() {
      // Until none is left: more than one batch may expire between two runs.
      for (let gone = EXPIRED_BATCH; gone === EXPIRED_BATCH; )
        gone = (await queryOne(database.pool, EXPIRED, [EXPIRED_BATCH]))?.n ?? 0;
    },
  };
}

const digest = (text: string): Buffer => createHash('sha256').update(text, 'utf8').digest();

/** JSON with sorted keys: the same request is the same text. */
export function canonical(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) =>
    inner !== null && typeof inner === 'object' && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)))
      : inner,
  );
}
