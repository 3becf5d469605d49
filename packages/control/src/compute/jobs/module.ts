import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import { purge } from '../../platform/retention/purge.ts';
import type { Module } from '../../platform/module.ts';
import { jobLogRoutes } from './logs.ts';
import { jobRoutes } from './routes.ts';

/** Jobs that have finished. */
export const JOB_PURGE = purge(
  'jobs',
  `delete from jobs where id in (
       select id from jobs where finished_at < now() - $1 * interval '1 day' order by finished_at limit $2 for update skip locked)
     returning id`,
);

export function jobsModule(context: { database: Database; hosts: HostClient }): Module {
  return {
    name: 'jobs',
    purges: [JOB_PURGE],
    routes(planes) {
      jobRoutes(planes, context);
      jobLogRoutes(planes, context);
    },
  };
}
