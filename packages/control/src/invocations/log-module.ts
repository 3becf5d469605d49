import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { batchStep } from '../teardown/step.ts';
import { invocationLogRoutes } from './log-routes.ts';
import { dropInvocationPartitions, makeInvocationPartitions } from './partitions.ts';

const PARTITIONS_MS = 3_600_000;
/** The log of invocations: reads, retention and teardown. */
export function invocationLogModule(context: ControlContext): Module {
  const { database, limits, log } = context;
  return {
    name: 'invocation-log',
    routes: (planes) => invocationLogRoutes(planes, context),
    tasks: [
      {
        name: 'invocation-partitions',
        everyMs: PARTITIONS_MS,
        leased: true,
        async run() {
          await makeInvocationPartitions(database, log);
          await dropInvocationPartitions(database, limits.invocationRetentionDays, log);
        },
      },
    ],
    teardown: [
      batchStep(database, {
        name: 'invocations',
        phase: 'erase',
        text: `with gone as (
            delete from invocations where (id, queued_at) in (
              select id, queued_at from invocations where project_id = $1 limit $2)
            returning id
          ), bodies as (
            delete from invocation_payloads where invocation_id in (select id from gone)
          )
          select 1 from gone`,
      }),
    ],
  };
}
