import type { Scheduler } from './scheduler.ts';
import { gauge } from '../../platform/metrics/scraped.ts';
import type { Module } from '../../platform/module.ts';

export function schedulerModule({
  scheduler,
  limits,
}: {
  limits: { createQueue: number; sweepMs: number };
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
    ],
  };
}
