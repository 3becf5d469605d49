import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { resolveRoutes } from './resolve.ts';

export function gatewaysModule(context: ControlContext): Module {
  return { name: 'gateways', routes: (planes) => resolveRoutes(planes, context) };
}
