import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { EventBus } from '../../platform/events/event-bus.ts';
import { FUNCTION_PRESSURE, INSTANCE_RETIRED, type FunctionInstances } from './instances.ts';
import type { Module } from '../../platform/module.ts';
import { createListeningStarts } from './listening.ts';

/** Instances of functions: renews leases, and removes what no gateway has. */
export function functionInstancesModule({
  database,
  events,
  instances,
  limits,
  log,
}: {
  database: Database;
  events: EventBus;
  instances: FunctionInstances;
  log: Logger;
  limits: { functionLeaseMs: number; sweepMs: number };
}): Module {
  const starts = createListeningStarts(database.pool, log);
  events.on('instances-listening', (listening) => {
    starts.add(listening);
    starts.kick();
  });
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
        name: 'function-starts',
        everyMs: limits.sweepMs,
        leased: false,
        run: () => starts.flush(),
      },
      {
        name: 'function-shortages',
        everyMs: limits.sweepMs,
        leased: false,
        run: () => instances.makeWay(),
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
