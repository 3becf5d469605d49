import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Logger } from 'pino';
import type { Usage } from './usage.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { dropUsagePartitions, makeUsagePartitions } from './partitions.ts';
import { usageRoutes } from './routes.ts';

const PARTITIONS_MS = 3_600_000;

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
          await makeUsagePartitions(database, usage.settings, log);
          await dropUsagePartitions(database, usage.settings, log);
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
