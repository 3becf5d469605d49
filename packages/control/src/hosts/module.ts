import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { drain } from './drain.ts';
import { hostRoutes } from './routes.ts';

export function hostsModule(context: ControlContext): Module {
  return {
    name: 'hosts',
    routes: (planes) => hostRoutes(planes, context),
    tasks: [{ name: 'host-drain', everyMs: context.limits.sweepMs, leased: true, run: () => drain(context) }],
  };
}
