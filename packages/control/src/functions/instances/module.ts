import type { EventBus } from '../../platform/events/event-bus.ts';
import { FUNCTION_PRESSURE, INSTANCE_RETIRED, type FunctionInstances } from './instances.ts';
import type { Module } from '../../platform/module.ts';

/** Instances of functions: renews leases, and removes what no gateway has. */
export function functionInstancesModule({
  events,
  instances,
  limits,
}: {
  events: EventBus;
  instances: FunctionInstances;
  limits: { functionLeaseMs: number; sweepMs: number };
}): Module {
  events.on('changed-elsewhere', (changed) => {
    const ofKind = (wanted: string): string[] =>
      changed.flatMap(([id, , , kind]) => (kind === wanted ? [id] : []));
    const pressed = ofKind(FUNCTION_PRESSURE);
    if (pressed.length > 0) events.emit('function-pressure', pressed);
    const retired = ofKind(INSTANCE_RETIRED);
    if (retired.length > 0) events.emit('instances-retired', retired);
  });
  return {
    name: 'function-instances',
    tasks: [
      {
        name: 'function-leases',
        everyMs: limits.functionLeaseMs / 4,
        leased: false,
        run: () => instances.renew(),
      },
      {
        name: 'function-instances',
        everyMs: limits.sweepMs,
        leased: true,
        run: () => instances.removeEnded(),
      },
      {
        name: 'function-drains',
        everyMs: limits.sweepMs,
        leased: true,
        run: () => instances.retireDrained(),
      },
    ],
  };
}
