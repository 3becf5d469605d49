import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Logger } from 'pino';
import { queryAll, statement } from '@releap/database';
import type { Module } from '../../platform/module.ts';
import { dropPartitions, makePartitions, purgeDefault } from '../../platform/retention/partitions.ts';
import { MAY_REPORT } from '../versions/teardown.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import type { Usage } from '../../compute/usage/usage.ts';
import { hoursPartitions, mergeHours } from './hours.ts';
import { invocationLogRoutes } from './log-routes.ts';

const PARTITIONS_MS = 3_600_000;
const MERGE_MS = 30_000;
/** Rows that one pass of a teardown removes: a statement must end in time. */
const BATCH = 1_000;
/** Not of an invocation that runs, or may: its gateway was cut off for some minutes and will report its end. */
const HAS_ENDED = `i.status not in ('pending', 'running') and (i.reported_at is null or i.reported_at < now() - interval '15 minutes')`;

/** $1 project, $2 how long reports of gateways take, in milliseconds */
const ERASE = statement<{ gone: number; is_left: boolean }>(
  'teardown-invocations',
  `with gone as (
     delete from invocations where (id, queued_at) in (
       select i.id, i.queued_at from invocations i
        where i.project_id = $1 and ${HAS_ENDED} and not ${MAY_REPORT} limit ${BATCH})
     returning id
   ), bodies as (
     delete from invocation_payloads where invocation_id in (select id from gone)
   ), results as (
     delete from invocation_result_bytes where project_id = $1
   )
   select (select count(*)::integer from gone) as gone,
          exists (select 1 from invocations i where i.project_id = $1 and i.id not in (select id from gone)) as is_left`,
);

const PARTITIONS = {
  table: 'invocations',
  period: 'day',
  behind: 1,
  ahead: 3,
  purge: purgeDefault('invocations', 'queued_at'),
} as const;
/** Of invocations that never ended. $1 retention in days */
const PURGE_PAYLOADS = statement(
  'invocation-payloads-purge',
  `delete from invocation_payloads where invocation_id in (
     select id from invocations where status in ('pending', 'running') and queued_at < now() - $1 * interval '1 day')`,
);

/** What the results of a day take, whose invocations are gone. $1 retention in days */
const PURGE_RESULT_BYTES = statement(
  'invocation-result-bytes-purge',
  `delete from invocation_result_bytes where day < (now() at time zone 'utc')::date - $1::integer`,
);

/** @param days how long invocations are kept */
export async function dropInvocations(database: Database, days: number, log: Logger): Promise<void> {
  await queryAll(database.pool, PURGE_PAYLOADS, [days]);
  await dropPartitions(database, [{ ...PARTITIONS, days }], log);
  await queryAll(database.pool, PURGE_RESULT_BYTES, [days]);
}

export interface InvocationLogModuleOptions {
  database: Database;
  hosts: HostClient;
  limits: { invocationRetentionDays: number; teardownGraceMs: number };
  log: Logger;
  /** Sums of invocations are kept as long as hours of use. */
  usage: Pick<Usage, 'settings'>;
}

/** The log of invocations: reads, retention and teardown. */
export function invocationLogModule(context: InvocationLogModuleOptions): Module {
  const { database, limits, log, usage } = context;
  return {
    name: 'invocation-log',
    routes: (planes) => invocationLogRoutes(planes, context),
    tasks: [
      {
        name: 'invocation-partitions',
        everyMs: PARTITIONS_MS,
        leased: true,
        async run() {
          const hours = hoursPartitions(usage.settings.hourDays);
          await makePartitions(database, [PARTITIONS, hours], log);
          await dropInvocations(database, limits.invocationRetentionDays, log);
          await dropPartitions(database, [hours], log);
        },
      },
      {
        name: 'invocation-hours',
        everyMs: MERGE_MS,
        leased: true,
        run: () => mergeHours(database.pool),
      },
    ],
    teardown: [
      {
        name: 'invocations',
        phase: 'erase',
        async run(projectId) {
          const [row] = await queryAll(database.pool, ERASE, [projectId, limits.teardownGraceMs]);
          if (row?.is_left !== true) return 0;
          return row.gone > 0 ? 'more' : 1;
        },
      },
      // After the invocations: what ends late is counted here.
      batchStep(database, {
        name: 'invocation-hours',
        phase: 'erase',
        text: `delete from invocation_hours
                where (function_id, hour) in (select function_id, hour from invocation_hours where project_id = $1 limit $2)
               returning 1`,
      }),
    ],
  };
}
