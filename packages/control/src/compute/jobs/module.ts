import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { jobLogRoutes } from './logs.ts';
import { jobRoutes } from './routes.ts';

export function jobsModule(context: ControlContext): Module {
  return {
    name: 'jobs',
    routes(planes) {
      jobRoutes(planes, context);
      jobLogRoutes(planes, context);
    },
  };
}
