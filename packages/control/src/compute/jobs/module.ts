import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Module } from '../../platform/module.ts';
import { jobLogRoutes } from './logs.ts';
import { jobRoutes } from './routes.ts';

export function jobsModule(context: { database: Database; hosts: HostClient }): Module {
  return {
    name: 'jobs',
    routes(planes) {
      jobRoutes(planes, context);
      jobLogRoutes(planes, context);
    },
  };
}
