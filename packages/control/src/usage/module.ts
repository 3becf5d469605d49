import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { dropUsagePartitions, makeUsagePartitions } from './partitions.ts';
import { usageRoutes } from './routes.ts';

const PARTITIONS_MS = 3_600_000;

export function usageModule(context: ControlContext): Module {
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
      statementStep(database, {
        name: 'usage',
        phase: 'erase',
        text: 'with gone as (delete from usage_hours where project_id = $1) select 1 where false',
      }),
    ],
  };
}
