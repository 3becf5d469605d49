/**
 * Removes the contents of deleted projects in the background, step by step. The project's row records the remaining work,
 * so any server continues after a crash.
 */
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { inOrder, type TeardownStep } from './step.ts';

const FINISH = statement(
  'teardown-finish',
  'update projects set teardown_after = null, torn_down_at = now() where id = $1 and teardown_after is not null',
);

/**
 * A request that was authorized before the deletion may write rows after it. Requests are received within a minute, and
 * no statement takes longer than seconds.
 */
export const TEARDOWN_GRACE_MS = 120_000;
const LEASE_MS = 30_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 30_000;
/** Projects at a time. */
const LANES = 4;

/** A due project; other servers and lanes skip it until the lease ends. $1 lease in milliseconds */
const CLAIM = statement<{ id: string; age_ms: number }>(
  'teardown-claim',
  `update projects p set teardown_after = now() + $1 * interval '1 millisecond'
     from (select id from projects where teardown_after <= now() order by teardown_after limit 1
              for no key update skip locked) due
    where p.id = due.id
   returning p.id, (extract(epoch from now() - p.deleted_at) * 1000)::double precision as age_ms`,
);
/** Also renews the lease. $2 milliseconds until it is due */
const AGAIN = statement(
  'teardown-again',
  `update projects set teardown_after = now() + $2 * interval '1 millisecond' where id = $1 and teardown_after is not null`,
);

export interface Teardown {
  /** Continues with due projects. */
  sweep(): Promise<void>;
  /** Continues soon, after a deletion. */
  kick(): void;
  close(): Promise<void>;
}

export interface TeardownOptions {
  database: Database;
  steps: readonly TeardownStep[];
  graceMs?: number;
  log: Logger;
}

export function createTeardown(options: TeardownOptions): Teardown {
  const { database, log } = options;
  const steps = inOrder(options.steps);
  const graceMs = options.graceMs ?? TEARDOWN_GRACE_MS;
  let running: Promise<void> | undefined;
  let again = false;
  const closed = new AbortController();

  async function tearDown(projectId: string, ageMs: number): Promise<void> {
    const repeatIn = (waitMs: number): Promise<unknown> =>
      queryAll(database.pool, AGAIN, [projectId, waitMs]);
    let left: string | undefined;
    let isMore = false;
    let hasFailed = false;
    let leasedAt = performance.now();
    // Every step runs in each pass, even if an earlier one is incomplete or fails: secrets are erased although a host that
    // holds a sandbox is unreachable.
    for (const step of steps) {
      if (performance.now() - leasedAt > LEASE_MS / 3) {
        await repeatIn(LEASE_MS);
        leasedAt = performance.now();
      }
      try {
        const remaining = await step.run(projectId);
        if (remaining === 'more') isMore = true;
        else if (remaining > 0) left ??= step.name;
      } catch (error) {
        hasFailed = true;
        log.error(
          { err: error, project: projectId, step: step.name },
          'a step of the teardown of a deleted project failed; it is repeated',
        );
      }
    }
    if (left !== undefined) log.debug({ project: projectId, left }, 'a deleted project is not empty yet');
    if (left === undefined && !isMore && !hasFailed && ageMs >= graceMs) {
      await queryAll(database.pool, FINISH, [projectId]);
      log.info({ project: projectId }, 'a deleted project is empty');
      return;
    }
    // What remains is released by hosts: it is looked at soon at first, and rarely if a host does not return.
    const wait = Math.min(Math.max(ageMs / 4, RETRY_FIRST_MS), RETRY_MAX_MS);
    await repeatIn(isMore ? (hasFailed ? RETRY_FIRST_MS : 0) : wait);
  }

  /** Claims due projects one by one, until none is. */
  async function lane(): Promise<void> {
    while (!closed.signal.aborted) {
      const due = await queryOne(database.pool, CLAIM, [LEASE_MS]);
      if (due === undefined) return;
      await tearDown(due.id, due.age_ms).catch((error: unknown) =>
        log.error({ err: error, project: due.id }, 'a deleted project could not be torn down; retrying'),
      );
    }
  }

  async function pass(): Promise<void> {
    do {
      again = false;
      await Promise.all(Array.from({ length: LANES }, lane));
    } while (again && !closed.signal.aborted);
  }

  const sweep = async (): Promise<void> => {
    if (closed.signal.aborted) return;
    again = true;
    running ??= pass().finally(() => (running = undefined));
    await running;
  };
  return {
    sweep,
    kick() {
      sweep().catch((error: unknown) => log.warn({ err: error }, 'a teardown is delayed'));
    },
    async close() {
      closed.abort();
      await running?.catch(() => undefined);
    },
  };
}
