/**
 * Removes the contents of deleted projects in the background, step by step. The project's row records the remaining work,
 * so any server continues after a crash.
 */
import { queryAll, queryOne, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { createWorkLoop, type WorkLoop } from '../work/work-loop.ts';
import { WorkTable } from '../work/work-table.ts';
import { inOrder, type TeardownStep } from './step.ts';

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

/** One attempt to remove what is left of a project. */
interface Pass {
  id: string;
  teardown_attempt: number;
}

const PROJECTS = new WorkTable<Pass>({
  name: 'project-teardown',
  table: 'projects',
  key: { id: 'uuid' },
  fence: { teardown_attempt: 'integer' },
  attempt: 'teardown_attempt',
  deadline: 'teardown_after',
  claimed: 'w.teardown_after is not null',
  queue: { due: 'w.teardown_after <= now()', order: 'w.teardown_after', organization: 'w.org_id' },
});

/** $1 lease in milliseconds */
const CLAIM = PROJECTS.claiming<Pass & { age_ms: number }>('claim', {
  pick: PROJECTS.turns('1'),
  returning: `w.id, w.teardown_attempt, (extract(epoch from now() - w.deleted_at) * 1000)::double precision as age_ms`,
});
const FINISH = PROJECTS.changing('finish', { set: 'teardown_after = null, torn_down_at = now()' });

export interface TeardownOptions {
  database: Database;
  steps: readonly TeardownStep[];
  graceMs?: number;
  log: Logger;
}

/** `kick` it after a deletion. */
export function createTeardown(options: TeardownOptions): WorkLoop {
  const { database, log } = options;
  const steps = inOrder(options.steps);
  const graceMs = options.graceMs ?? TEARDOWN_GRACE_MS;

  async function tearDown(claim: Pass, ageMs: number): Promise<void> {
    const { id: projectId } = claim;
    /** @throws when another server has taken it over */
    const repeatIn = async (waitMs: number): Promise<void> => {
      const renewed = await PROJECTS.renew(database.pool, [claim], waitMs);
      if (renewed.size === 0) throw new Error('another server has taken it over');
    };
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
      await queryAll(database.pool, FINISH, PROJECTS.values([claim]));
      log.info({ project: projectId }, 'a deleted project is empty');
      return;
    }
    // What remains is released by hosts: it is looked at soon at first, and rarely if a host does not return.
    const wait = Math.min(Math.max(ageMs / 4, RETRY_FIRST_MS), RETRY_MAX_MS);
    await repeatIn(isMore ? (hasFailed ? RETRY_FIRST_MS : 0) : wait);
  }

  return createWorkLoop({
    lanes: LANES,
    async step() {
      const due = await queryOne(database.pool, CLAIM, [LEASE_MS]);
      if (due === undefined) return false;
      await tearDown(due, due.age_ms).catch((error: unknown) =>
        log.error({ err: error, project: due.id }, 'a deleted project could not be torn down; retrying'),
      );
      return true;
    },
    onError: (error) => log.warn({ err: error }, 'a teardown is delayed'),
  });
}
