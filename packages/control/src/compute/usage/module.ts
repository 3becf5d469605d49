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

const PURGE_MINUTES = purgeDefault('usage_minutes', 'minute');
const PURGE_HOURS = purgeDefault('usage_hours', 'hour');

/** From the oldest that a runner may still send. */
export function usagePartitions({ minuteDays, hourDays }: UsageSettings): PartitionedTable[] {
  // A day longer than minutes are accepted, so that no repeated piece is counted again.
  const days = minuteDays + 1;
  return [
    { table: 'usage_minutes', period: 'day', behind: days, ahead: 3, days, purge: PURGE_MINUTES },
    { table: 'usage_hours', period: 'month', behind: 1, ahead: 2, days: hourDays, purge: PURGE_HOURS },
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
    teardown: [
      batchStep(database, {
        name: 'usage',
        phase: 'erase',
        text: `delete from usage_hours
                where (sandbox_id, hour) in (select sandbox_id, hour from usage_hours where project_id = $1 limit $2)
               returning 1`,
      }),
    ],
  };
}
