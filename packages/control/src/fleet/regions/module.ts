import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { regionRoutes } from './routes.ts';

export function regionsModule(context: ControlContext): Module {
  return { name: 'regions', routes: (planes) => regionRoutes(planes, context) };
}
