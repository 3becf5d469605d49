import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { createAssignmentSecrets } from '../../storage/secrets/assignment-secrets.ts';
import { endOverdue } from './deadlines.ts';
import { sandboxMetrics } from './metrics.ts';
import { leaseExpiry } from './leases.ts';
import { createSandboxKind } from './reconciled-kind.ts';
import { releaseForkSources } from './pending-forks.ts';
import { sandboxRoutes } from './routes.ts';
import { sandboxTeardown } from './teardown.ts';

export function sandboxesModule(context: ControlContext): Module {
  const { billing, limits } = context;
  return {
    name: 'sandboxes',
    metrics: (registry) => sandboxMetrics(registry, context.database, context.log),
    routes: (planes) =>
      sandboxRoutes(planes, { ...context, requireCredits: (orgId) => billing.requireCredits(orgId) }),
    tasks: [
      {
        name: 'pending-forks',
        everyMs: limits.sweepMs,
        leased: true,
        run: () =>
          releaseForkSources(context.database, (event, rows) => context.lifecycle.apply(event, rows)),
      },
      { name: 'sandbox-deadlines', everyMs: limits.sweepMs, leased: true, run: () => endOverdue(context) },
      { name: 'sandbox-leases', everyMs: limits.sweepMs, leased: true, run: leaseExpiry(context) },
    ],
    teardown: sandboxTeardown(context),
    kinds: [
      createSandboxKind({
        ...context,
        secrets: createAssignmentSecrets(context.database, context.egressRoot, context.log),
        onCapacityReleased: () => context.events.emit('capacity-released'),
      }),
    ],
  };
}
