import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';

export function schedulerModule({ scheduler, limits }: ControlContext): Module {
  return {
    name: 'scheduler',
    tasks: [
      {
        // Whatever asked for a placement before: this finds what was missed.
        name: 'placement',
        everyMs: limits.sweepMs,
        leased: false,
        run: async () => scheduler.kick(),
      },
    ],
  };
}
