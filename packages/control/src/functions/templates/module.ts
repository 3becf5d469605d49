import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { createProber } from './prober.ts';

/** Tries versions of functions before they serve. */
export function functionTemplatesModule(context: ControlContext): Module {
  const prober = context.cleanup.use(createProber(context));
  return {
    name: 'function-templates',
    tasks: [
      {
        name: 'function-versions',
        everyMs: context.limits.sweepMs,
        leased: false,
        run: () => prober.sweep(),
      },
      {
        name: 'function-templates',
        // It reads all templates; what serves is decided when an instance starts.
        everyMs: 300 * context.limits.sweepMs,
        leased: true,
        run: () => context.functionTemplates.sweep(),
      },
    ],
  };
}
