import type { Billing } from './billing.ts';
import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { chargeProjectFunctions } from './function-charges.ts';
import { billingMetrics } from './metrics.ts';
import { creditOperatorRoutes } from './operator-routes.ts';
import { creditRoutes } from './routes.ts';

export interface BillingModuleOptions {
  billing: Billing;
  database: Database;
  log: Logger;
}

export function billingModule(context: BillingModuleOptions): Module {
  const { billing } = context;
  return {
    name: 'billing',
    metrics: (registry) => billingMetrics(registry, context.database, context.log),
    routes(planes) {
      creditRoutes(planes, context);
      creditOperatorRoutes(planes, context);
    },
    tasks: [
      { name: 'charge', everyMs: billing.settings.passMs, leased: true, run: () => billing.chargeMeters() },
      {
        // Not leased: the CPU counters of the runners that are connected here are in this server's memory.
        name: 'charge-bursts',
        everyMs: billing.settings.passMs,
        leased: false,
        run: () => billing.chargeBursts(),
      },
      {
        name: 'credit-limits',
        everyMs: billing.settings.checkMs,
        leased: true,
        run: () => billing.enforceLimits(),
      },
    ],
    teardown: [
      {
        name: 'function-meters',
        // Until the functions are erased, which waits for this: the entries name them.
        phase: 'stop',
        async run(projectId) {
          await chargeProjectFunctions(context.database.pool, projectId);
          return 0;
        },
      },
    ],
  };
}
