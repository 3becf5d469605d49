import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Logger } from 'pino';
import type { Usage } from './usage.ts';
import type { Module } from '../../platform/module.ts';
import {
  dropPartitions,
  makePartitions,
  purgeDefault,
  type PartitionedTable,
} from '../../platform/retention/partitions.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { usageRoutes } from './routes.ts';
import type { UsageSettings } from './settings.ts';

const PARTITIONS_MS = 3_600_000;

const PURGE_BATCHES = purgeDefault('usage_batches', 'hour');
const PURGE_HOURLY = purgeDefault('usage_hourly', 'hour');
const PURGE_MINUTES = purgeDefault('usage_minutes', 'minute');
const PURGE_HOURS = purgeDefault('usage_hours', 'hour');
/** Tables of the version before. It makes its partitions while it runs; they are dropped as they expire. */
const NONE_MADE = { behind: 0, ahead: -1 };

/** From the oldest that a runner may still send. */
export function usagePartitions({ minuteDays, hourDays }: UsageSettings): PartitionedTable[] {
  // A day longer than minutes are accepted, so that no repeated piece is counted again.
  const days = minuteDays + 1;
  // Minutes are found by their hours.
  const hoursKept = Math.max(hourDays, days);
  return [
    { table: 'usage_batches', period: 'day', behind: days, ahead: 3, days, purge: PURGE_BATCHES },
    { table: 'usage_hourly', period: 'month', behind: 1, ahead: 2, days: hoursKept, purge: PURGE_HOURLY },
    { table: 'usage_minutes', period: 'day', ...NONE_MADE, days, purge: PURGE_MINUTES },
    { table: 'usage_hours', period: 'month', ...NONE_MADE, days: hourDays, purge: PURGE_HOURS },
  ];
}

export interface UsageModuleOptions {
  database: Database;
  hosts: HostClient;
  log: Logger;
  usage: Usage;
}

export function usageModule(context: UsageModuleOptions): Module {
  const { database, usage, log } = context;
  return {
    name: 'usage',
    routes: (planes) => usageRoutes(planes, context),
    tasks: [
      {
        name: 'usage-partitions',
        everyMs: PARTITIONS_MS,
        leased: true,
        async run() {
          const tables = usagePartitions(usage.settings);
          await makePartitions(database, tables, log);
          await dropPartitions(database, tables, log);
        },
      },
    ],
    teardown: ['usage_hourly', 'usage_hours'].map((table) =>
      batchStep(database, {
        name: table.replace('_', '-'),
        phase: 'erase',
        text: `delete from ${table}
                where (hour, sandbox_id) in (select hour, sandbox_id from ${table} where project_id = $1 limit $2)
               returning 1`,
      }),
    ),
  };
}
