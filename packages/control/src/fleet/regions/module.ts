import type { Database } from '@releap/database';
import type { Regions } from './regions.ts';
import type { Module } from '../../platform/module.ts';
import { operatorRegionRoutes } from './operator-routes.ts';
import { regionRoutes } from './routes.ts';

export function regionsModule(context: { database: Database; regions: Regions }): Module {
  return {
    name: 'regions',
    routes(planes) {
      regionRoutes(planes, context);
      operatorRegionRoutes(planes, context);
    },
  };
}
