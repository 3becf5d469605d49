import type { Billing } from '../../tenancy/billing/billing.ts';
import type { ClusterNotifier } from '../../platform/events/cluster-notifier.ts';
import type { Database } from '@releap/database';
import type { DispatchTokens } from '../versions/dispatch-token.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import type { Regions } from '../../fleet/regions/regions.ts';
import { newUuid } from '@releap/contract';
import { Counter } from 'prom-client';
import { gatewayAddress } from '../versions/gateway-address.ts';
import { gauge } from '../../platform/metrics/scraped.ts';
import type { Module } from '../../platform/module.ts';
import { LEASE_MS } from './lease.ts';
import { invocationRoutes } from './routes.ts';
import { createSender } from './send.ts';
import { createWorker } from './worker.ts';

/** For what notifications have missed. */
const POLL_MS = 2_000;
/** The kind of change with which servers tell each other of invocations that they have stored and cannot run now. */
const BACKLOG = 'invocations';
const RENEW_MS = LEASE_MS / 3;
const SWEEP_MS = 2_000;

export interface InvocationsModuleOptions {
  billing: Billing;
  cleanup: AsyncDisposableStack;
  cluster: ClusterNotifier;
  database: Database;
  dispatchTokens: DispatchTokens;
  events: EventBus;
  log: Logger;
  regions: Regions;
}

export function invocationsModule(context: InvocationsModuleOptions): Module {
  const { billing, cleanup, cluster, database, dispatchTokens, events, log, regions } = context;
  const sender = createSender();
  cleanup.defer(() => sender.close());
  const outcomes = new Counter({
    name: 'releap_invocation_attempts_total',
    help: 'Attempts of invocations that no client waits for, on this server',
    labelNames: ['outcome'],
    registers: [],
  });
  const worker = createWorker({
    database,
    prices: billing.prices,
    async send(request) {
      const outcome = await sender.send(request);
      outcomes.inc({ outcome: outcome.kind === 'ended' ? outcome.status : outcome.kind });
      return outcome;
    },
    gatewayOf: (region) => gatewayAddress(regions, region),
    tokenFor: (projectId) => dispatchTokens.issue(projectId),
    onBacklog: () => cluster.publish([[newUuid(), null, 0, BACKLOG]]),
    log,
  });
  cleanup.use(worker);
  events.on('invocations-pending', () => worker.kick(true));
  events.on('changed-elsewhere', (changed) => {
    if (changed.some(([, , , kind]) => kind === BACKLOG)) worker.kick();
  });
  return {
    name: 'invocations',
    drain: () => worker.drain(),
    routes: (planes) => invocationRoutes(planes, context),
    metrics(registry) {
      registry.registerMetric(outcomes);
      gauge(
        registry,
        'releap_invocations_in_flight',
        'Invocations that no client waits for, in progress on this server',
        () => worker.inFlight,
      );
    },
    tasks: [
      {
        name: 'invocation-poll',
        everyMs: POLL_MS,
        leased: false,
        run: () => {
          worker.kick();
          return Promise.resolve();
        },
      },
      { name: 'invocation-leases', everyMs: RENEW_MS, leased: false, run: () => worker.renewLeases() },
      { name: 'invocation-sweep', everyMs: SWEEP_MS, leased: true, run: () => worker.sweep() },
    ],
  };
}
