import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import type { TeardownStep } from './step.ts';
import { createTeardown } from './teardown.ts';

/** @param steps of all modules */
export function teardownModule(context: ControlContext, steps: readonly TeardownStep[]): Module {
  const { database, limits, log, events, cleanup } = context;
  const teardown = createTeardown({ database, steps, graceMs: limits.teardownGraceMs, log });
  cleanup.defer(() => teardown.close());
  events.on('projects-deleted', () => teardown.kick());
  return {
    name: 'teardown',
    tasks: [
      {
        name: 'teardown',
        everyMs: limits.sweepMs,
        leased: false,
        timeoutMs: 600_000,
        run: () => teardown.sweep(),
      },
    ],
  };
}
