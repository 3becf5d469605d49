import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { drain } from './drain.ts';
import { releaseForgotten } from './forget.ts';
import { hostRoutes } from './routes.ts';

/** Interval of the search for leftovers of interrupted calls on forgotten hosts. */
const FORGOTTEN_MS = 30_000;

export function hostsModule(context: ControlContext): Module {
  return {
    name: 'hosts',
    routes: (planes) => hostRoutes(planes, context),
    tasks: [
      { name: 'host-drain', everyMs: context.limits.sweepMs, leased: true, run: () => drain(context) },
      { name: 'forgotten-hosts', everyMs: FORGOTTEN_MS, leased: true, run: () => releaseForgotten(context) },
    ],
  };
}
