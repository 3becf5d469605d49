import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Scheduler } from './scheduler.ts';
import { gauge } from '../../platform/metrics/scraped.ts';
import type { Module } from '../../platform/module.ts';
import { repairAllocations } from './repair-allocations.ts';

/** Interval of the count of what is allocated on each host: it reads every held sandbox. */
const COUNT_MS = 600_000;

export function schedulerModule({
  database,
  scheduler,
  limits,
  log,
}: {
  database: Database;
  limits: { createQueue: number; sweepMs: number };
  log: Logger;
  scheduler: Scheduler;
}): Module {
  return {
    name: 'scheduler',
    metrics(registry) {
      gauge(
        registry,
        'releap_create_queue_sandboxes',
        'Sandboxes that wait for a host, as this server counts them',
        () => scheduler.queue.waiting,
      );
      gauge(
        registry,
        'releap_create_queue_limit_sandboxes',
        'Sandboxes that may wait for a host',
        () => limits.createQueue,
      );
    },
    tasks: [
      {
        // Finds sandboxes whose event was missed.
        name: 'placement',
        everyMs: limits.sweepMs,
        leased: false,
        run: async () => scheduler.kick(),
      },
      {
        name: 'host-allocations',
        everyMs: COUNT_MS,
        leased: true,
        run: () => repairAllocations({ database, log }),
      },
    ],
  };
}
