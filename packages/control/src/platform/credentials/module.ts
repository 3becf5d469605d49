import type { ControlContext } from '../../context.ts';
import type { Module } from '../module.ts';
import { runnerRoutes } from './runner-routes.ts';

export function credentialsModule(context: ControlContext): Module {
  return { name: 'credentials', routes: (planes) => runnerRoutes(planes, context) };
}
