import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';

/** Instances of functions: renews leases, and removes what no gateway has. */
export function functionInstancesModule({ instances, limits }: ControlContext): Module {
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
