import type { Regions } from './regions.ts';
import type { Module } from '../../platform/module.ts';
import { regionRoutes } from './routes.ts';

export function regionsModule(context: { regions: Regions }): Module {
  return { name: 'regions', routes: (planes) => regionRoutes(planes, context) };
}
