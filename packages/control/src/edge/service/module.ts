import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { serviceRoutes } from './routes.ts';

export function serviceModule({ database, options, regions }: ControlContext): Module {
  return {
    name: 'service',
    routes: (planes) => serviceRoutes(planes, { database, publicUrl: options.publicUrl, regions }),
  };
}
