/**
 * Fires schedules that are due. A fire moves `next_run_at` on in the transaction that writes the invocation, under a lock of the
 * row: any number of servers may try at once and be killed in it, and each time of a schedule fires once.
 */
import { newUuid } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { nextRun } from './cron.ts';

interface Due {
  id: string;
  cron: string;
  /** By the clock of the database, of which there is one. */
  now: Date;
  next_run_at: Date;
}

/** $1 a time instead of the clock, or null, $2 most of them */
const DUE = statement<Due>(
  'schedules-due',
  `select s.id, s.cron, s.next_run_at, date_trunc('milliseconds', coalesce($1::timestamptz, now())) as now
     from function_schedules s
    where s.enabled and s.next_run_at <= coalesce($1::timestamptz, now())
    order by s.next_run_at limit $2 for update skip locked`,
);

/** $1 schedules, $2 ids of invocations, $3 their next times; null: they fire never again, $4 now */
const FIRE = statement(
  'schedules-fire',
  `with fired as (
     update function_schedules s set next_run_at = g.next_run_at, last_run_at = $4, enabled = g.next_run_at is not null
       from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as g(schedule_id, invocation_id, next_run_at)
      where s.id = g.schedule_id
     returning s.id, s.function_id, s.project_id, s.payload, g.invocation_id
   ), bodies as (
     insert into invocation_payloads (invocation_id, content_type, body)
     select invocation_id, 'application/json', convert_to(coalesce(payload::text, 'null'), 'UTF8') from fired
   )
   insert into invocations (id, queued_at, project_id, function_id, source, status, schedule_id)
   select invocation_id, $4, project_id, function_id, 'schedule', 'pending', id from fired`,
);

const BATCH = 200;

/**
 * @param at instead of the clock, for tests
 * @returns how many have fired
 */
export async function fireSchedules(
  database: Database,
  log: Logger,
  { at = null, signal }: { at?: Date | null; signal?: AbortSignal } = {},
): Promise<number> {
  let fired = 0;
  for (;;) {
    const count = await database.transaction(async (client) => {
      const due = await queryAll(client, DUE, [at, BATCH]);
      const [first] = due;
      if (first === undefined) return 0;
      await queryAll(client, FIRE, [
        due.map(({ id }) => id),
        due.map(() => newUuid()),
        due.map((one) => following(one, log)),
        first.now,
      ]);
      return due.length;
    });
    fired += count;
    if (count < BATCH || signal?.aborted === true) return fired;
  }
}

/** The next time after now: of those that have passed, this fire makes up for all. */
function following({ id, cron, now, next_run_at: scheduled }: Due, log: Logger): Date | null {
  try {
    // A clock that was set back must not fire the same time twice.
    return nextRun(cron, now > scheduled ? now : scheduled) ?? null;
  } catch (error) {
    log.error(
      { err: error, schedule: id },
      'a schedule has an expression that cannot be read and is disabled',
    );
    return null;
  }
}
