/**
 * Fires schedules that are due. A fire moves `next_run_at` on in the transaction that writes the invocation, under a lock of the
 * row: any number of servers may try at once and be killed in it, and each time of a schedule fires once. A fire for which its
 * organization has no quota left is recorded as shed.
 */
import { newUuid } from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import { INVOCATIONS } from '../invocations/lease.ts';
import { quotaRefusal, type Exceeded } from '../../platform/quotas/quota-refusal.ts';
import { nextRun } from './cron.ts';

interface Due {
  id: string;
  cron: string;
  /** By the clock of the database, of which there is one. */
  now: Date;
  next_run_at: Date;
  org_id: string;
  /** Of the payload. */
  bytes: number;
}

/** Of an invocation of `function_schedules s`. */
const BODY = `convert_to(coalesce(s.payload::text, 'null'), 'UTF8')`;

/** $1 a time instead of the clock, or null, $2 most of them */
const DUE = statement<Due>(
  'schedules-due',
  `select s.id, s.cron, s.next_run_at, date_trunc('milliseconds', coalesce($1::timestamptz, now())) as now, p.org_id,
          octet_length(${BODY}) as bytes
     from function_schedules s join projects p on p.id = s.project_id
    where s.enabled and s.next_run_at <= coalesce($1::timestamptz, now())
    order by s.next_run_at limit $2 for update of s skip locked`,
);

/** $1 organization, $2 number, $3 bytes */
const ADMIT = statement<{ exceeded: Exceeded | null }>(
  'schedules-admit',
  `select ${INVOCATIONS.refusal('$1::uuid', '$2::integer', '$3::bigint')} as exceeded`,
);

/** $1 schedules, $2 ids of invocations, $3 their next times; null: they fire never again, $4 now, $5 why they are shed, or null */
const FIRE = statement(
  'schedules-fire',
  `with fired as (
     update function_schedules s set next_run_at = g.next_run_at, last_run_at = $4, enabled = g.next_run_at is not null
       from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as g(schedule_id, invocation_id, next_run_at)
      where s.id = g.schedule_id
     returning s.id, s.function_id, s.project_id, ${BODY} as body, g.invocation_id
   ), bodies as (
     insert into invocation_payloads (invocation_id, content_type, body, org_id)
     select f.invocation_id, 'application/json', f.body, p.org_id from fired f join projects p on p.id = f.project_id
      where $5::text is null
   )
   insert into invocations (id, queued_at, project_id, function_id, source, status, schedule_id, error, finished_at)
   select invocation_id, $4, project_id, function_id, 'schedule', case when $5::text is null then 'pending' else 'shed' end, id,
          $5::text, case when $5::text is not null then $4::timestamptz end
     from fired`,
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
      // In one order, as they take the quotas of their organizations.
      const orgs = [...Map.groupBy(due, (one) => one.org_id)].sort(([a], [b]) => (a < b ? -1 : 1));
      for (const [, ofOrg] of orgs) {
        if ((await admit(client, ofOrg)) === null) await fire(client, ofOrg, null, log);
        else
          for (const one of ofOrg) {
            const exceeded = await admit(client, [one]);
            await fire(client, [one], exceeded === null ? null : quotaRefusal(exceeded).message, log);
          }
      }
      return due.length;
    });
    fired += count;
    if (count < BATCH || signal?.aborted === true) return fired;
  }
}

async function admit(on: Queryable, due: readonly Due[]): Promise<Exceeded | null> {
  const bytes = due.reduce((sum, one) => sum + one.bytes, 0);
  return (await queryOne(on, ADMIT, [due[0]?.org_id, due.length, bytes]))?.exceeded ?? null;
}

async function fire(on: Queryable, due: readonly Due[], shed: string | null, log: Logger): Promise<void> {
  await queryAll(on, FIRE, [
    due.map(({ id }) => id),
    due.map(() => newUuid()),
    due.map((one) => following(one, log)),
    due[0]?.now,
    shed,
  ]);
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
