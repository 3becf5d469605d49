import type { Database } from '@releap/database';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { Module } from '../../platform/module.ts';
import { serviceRoutes } from './routes.ts';

export interface ServiceModuleOptions {
  database: Database;
  /** Aborted when the server is about to stop. */
  draining: AbortController;
  options: { publicUrl?: string };
  regions: Regions;
}

export function serviceModule({ database, draining, options, regions }: ServiceModuleOptions): Module {
  return {
    name: 'service',
    routes: (planes) =>
      serviceRoutes(planes, { database, draining: draining.signal, publicUrl: options.publicUrl, regions }),
  };
}
