import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { fireSchedules } from './fire.ts';
import { scheduleRoutes } from './routes.ts';

const FIRE_MS = 1_000;

export interface SchedulesModuleOptions {
  database: Database;
  events: EventBus;
  log: Logger;
}

/** Deleted with their function. */
export function schedulesModule(context: SchedulesModuleOptions): Module {
  const { database, events, log } = context;
  return {
    name: 'schedules',
    routes: (planes) => scheduleRoutes(planes, context),
    tasks: [
      {
        name: 'schedules',
        everyMs: FIRE_MS,
        leased: true,
        async run(signal) {
          if ((await fireSchedules(database, log, { signal })) > 0) events.emit('invocations-pending');
        },
      },
    ],
  };
}
