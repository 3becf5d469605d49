/** Fires the deadline event of sandboxes in transient states: the fallback for every missed event. */
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { StateDeadlines } from './transitions.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import type { Logger } from 'pino';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { queryAll, statement } from '@releap/database';
import { NEED, NEED_OF, toNeed, type NeedRow } from '../scheduler/need.ts';
import type { Change } from './transition-sql.ts';

const OVERDUE = statement<NeedRow & { status: string }>(
  'sandboxes-overdue',
  `select s.id, s.status, ${NEED}
     from ${NEED_OF} where s.deadline_at <= now() order by s.deadline_at limit 500`,
);

export async function endOverdue({
  database,
  lifecycle,
  scheduler,
  limits,
  events,
  log,
}: {
  database: Database;
  events: EventBus;
  lifecycle: Lifecycle;
  limits: { deadlines: StateDeadlines; overcommit: Overcommit };
  log: Logger;
  scheduler: Scheduler;
}): Promise<void> {
  const rows = await queryAll(database.pool, OVERDUE);
  if (rows.length === 0) return;
  // Reads the hosts once for all overdue sandboxes, and only if there are any.
  const explain = rows.some((row) => row.status === 'pending') ? await scheduler.explainer() : undefined;
  const changes: Change[] = rows.map((row) => {
    const late = `it was ${row.status} for longer than ${limits.deadlines[row.status as keyof typeof limits.deadlines] / 1000} s`;
    const error = row.status === 'pending' ? `${late}: ${explain?.(toNeed(row, limits.overcommit))}` : late;
    return { id: row.id, overdue: true, error };
  });
  const moved = await lifecycle.apply('deadline', changes);
  for (const row of moved)
    log.warn({ vm: row.id, status: row.status, reason: row.error }, 'a deadline has passed');
  if (moved.length > 0) events.emit('capacity-released');
}
