/** The schedules of functions. */
import {
  badRequest,
  BOUNDS,
  isUuid,
  notFound,
  quote,
  scheduleOperations,
  type ScheduleList,
  type ScheduleRecord,
  LIST_CURSORS,
} from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import { requireFunction } from '../versions/functions.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { lockProject } from '../../tenancy/management/access.ts';
import { firstRun } from './cron.ts';
import { BY_TIME, pagedList } from '../../platform/paged-list.ts';

type ScheduleRow = Omit<ScheduleRecord, 'next_run_at' | 'last_run_at' | 'created_at' | 'updated_at'> & {
  next_run_at: Date | null;
  last_run_at: Date | null;
  created_at: Date;
  updated_at: Date;
};

/**
 * A repeated request finds its row.
 * $1 id, $2 function, $3 cron, $4 payload, $5 enabled, $6 next time, $7 most schedules
 */
const INSERT = statement<{ next_run_at: Date | null }>(
  'schedule-insert',
  `insert into function_schedules as s (id, function_id, project_id, cron, payload, enabled, next_run_at)
   select $1, f.id, f.project_id, $3, $4::json, $5, $6 from functions f
    where f.id = $2 and (select count(*) from function_schedules o where o.function_id = f.id and o.id <> $1) < $7
   on conflict (id) do update set cron = s.cron
   returning s.next_run_at`,
);
/** $1 function */
const LIST = pagedList<ScheduleRow>('schedule-list', LIST_CURSORS.schedules, {
  columns: 'id, cron, payload, enabled, next_run_at, last_run_at, created_at, updated_at',
  from: 'function_schedules',
  where: 'function_id = $1',
  parameters: 1,
  keys: BY_TIME,
  direction: 'desc',
});
/** $1 id, $2 function. Locked, so that a fire does not move its next time meanwhile. */
const LOCK = statement<ScheduleRow>(
  'schedule-to-change',
  `select id, cron, payload, enabled, next_run_at, last_run_at, created_at, updated_at from function_schedules
    where id = $1 and function_id = $2 for no key update`,
);
/** $1 id, $2 cron, $3 payload, $4 enabled, $5 next time */
const UPDATE = statement<Pick<ScheduleRow, 'updated_at'>>(
  'schedule-update',
  'update function_schedules set cron = $2, payload = $3::json, enabled = $4, next_run_at = $5 where id = $1 returning updated_at',
);
/** $1 id, $2 function */
const DELETE = statement<{ id: string }>(
  'schedule-delete',
  'delete from function_schedules where id = $1 and function_id = $2 returning id',
);

export function scheduleRoutes({ workload }: Planes, { database }: { database: Database }): void {
  const { pool } = database;

  workload.operation(
    scheduleOperations.createSchedule,
    async ({ params: { name }, body, principal, ids }) => {
      const { cron, payload = null, enabled = true } = body;
      const next = firstRun(cron, new Date());
      const { id: functionId } = await requireFunction(pool, principal.projectId, name);
      const id = ids.uuid();
      const row = await database.transaction(async (client) => {
        await lockProject(client, principal.projectId);
        return await queryOne(client, INSERT, [
          id,
          functionId,
          cron,
          JSON.stringify(payload),
          enabled,
          enabled ? next : null,
          BOUNDS.schedulesPerFunction,
        ]);
      });
      if (row === undefined)
        throw badRequest(
          `function ${quote(name)} has ${BOUNDS.schedulesPerFunction} schedules already: delete one first`,
        );
      return { id, cron, enabled, next_run_at: row.next_run_at?.toISOString() ?? null };
    },
  );

  workload.operation(
    scheduleOperations.listSchedules,
    async ({ params: { name }, query, principal }): Promise<ScheduleList> => {
      const { id } = await requireFunction(pool, principal.projectId, name);
      const { rows, next } = await LIST.page(pool, [id], query);
      return { schedules: rows.map(toRecord), ...next };
    },
  );

  workload.operation(
    scheduleOperations.updateSchedule,
    async ({ params: { name, id }, body, principal }): Promise<ScheduleRecord> => {
      const { id: functionId } = await requireFunction(pool, principal.projectId, name);
      return database.transaction(async (client) => {
        const row = isUuid(id) ? await queryOne(client, LOCK, [id, functionId]) : undefined;
        if (row === undefined) throw unknownSchedule(name, id);
        const changed = { ...row, ...body };
        const { cron, payload, enabled } = changed;
        // As it is, unless its times are others: what is due meanwhile fires once.
        const hasNewTimes = cron !== row.cron || !row.enabled;
        const next = hasNewTimes ? firstRun(cron, new Date()) : row.next_run_at;
        changed.next_run_at = enabled ? next : null;
        const values = [id, cron, JSON.stringify(payload), enabled, changed.next_run_at];
        const written = await queryOne(client, UPDATE, values);
        return toRecord({ ...changed, ...written });
      });
    },
  );

  workload.operation(scheduleOperations.deleteSchedule, async ({ params: { name, id }, principal }) => {
    const { id: functionId } = await requireFunction(pool, principal.projectId, name);
    const gone = isUuid(id) ? await queryOne(pool, DELETE, [id, functionId]) : undefined;
    if (gone === undefined) throw unknownSchedule(name, id);
  });
}

const unknownSchedule = (name: string, id: string): Error =>
  notFound(`function ${quote(name)} has no schedule ${quote(id)}`, 'schedule_not_found');

function toRecord(row: ScheduleRow): ScheduleRecord {
  return {
    ...row,
    next_run_at: row.next_run_at?.toISOString() ?? null,
    last_run_at: row.last_run_at?.toISOString() ?? null,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
