import type { DataHosts } from '@releap/certificates/hosts';
import { internalOperations, isUuid, newUuid } from '@releap/contract';
import type { ClusterNotifier } from '../../platform/events/cluster-notifier.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { RunnerRegistry } from './registry.ts';
import { Counter } from 'prom-client';
import { gauge } from '../../platform/metrics/scraped.ts';
import type { Module } from '../../platform/module.ts';
import { createLiveness } from './liveness.ts';
import { purgeLostRunners } from './purge.ts';

const HEARTBEAT_MS = 5_000;
/** Start of the kind with which another server is told of wanted connections; the address follows. */
const DIAL = 'dial ';
const PURGE_MS = 6 * 3_600_000;

export interface RunnersModuleOptions {
  cluster: Pick<ClusterNotifier, 'publish'>;
  /** How this server connects to data servers. */
  dataHosts: DataHosts;
  database: Database;
  events: EventBus;
  heartbeats: Database;
  limits: { retentionDays: number; runnerLostAfterMs: number };
  log: Logger;
  runners: RunnerRegistry;
}

export function runnersModule({
  cluster,
  dataHosts,
  database,
  events,
  heartbeats,
  limits,
  log,
  runners,
}: RunnersModuleOptions): Module {
  const everyMs = Math.min(HEARTBEAT_MS, limits.runnerLostAfterMs / 4);
  const liveness = createLiveness(limits.runnerLostAfterMs);
  events.on('changed-elsewhere', (changed) => {
    runners.changedElsewhere(
      changed.map(([id, runner_id, generation, kind]) => ({ id, runner_id, generation, kind })),
    );
    for (const [, runnerId, , kind] of changed)
      if (runnerId !== null && kind?.startsWith(DIAL) === true)
        runners.dial(runnerId, kind.slice(DIAL.length));
  });
  events.on('connections-wanted', ({ runnerId, address }) => {
    if (isUuid(runnerId) && !runners.dial(runnerId, address))
      cluster.publish([[newUuid(), runnerId, 0, `${DIAL}${address}`]]);
  });
  events.on('notifications-missed', () => {
    runners
      .resync()
      .catch((error: unknown) =>
        log.warn({ err: error }, 'missed assignments could not be sent to runners; retrying later'),
      );
  });
  return {
    name: 'runners',
    routes({ runner }) {
      runner.operation(internalOperations.checkRunnerReach, async ({ body, runner: { runnerId } }) => {
        try {
          (await dataHosts.of({ runnerId, dataUrl: body.data_url }).dial()).destroy();
          return {};
        } catch (error) {
          return { error: (error as Error).message.slice(0, 300) };
        }
      });
    },
    metrics(registry) {
      gauge(
        registry,
        'releap_runner_links',
        'Runners that are connected to this server and have said hello',
        () => runners.links().length,
      );
      registry.registerMetric(
        new Counter({
          name: 'releap_runner_ignored_total',
          help: 'Data from runners that this server could not read: types of messages, messages, items of messages',
          labelNames: ['what'],
          registers: [],
          collect() {
            const { messageTypes, messages, items } = runners.ignored;
            this.reset();
            this.inc({ what: 'message_type' }, messageTypes);
            this.inc({ what: 'message' }, messages);
            this.inc({ what: 'item' }, items);
          },
        }),
      );
    },
    tasks: [
      {
        name: 'runner-heartbeat',
        everyMs,
        leased: false,
        async run() {
          await runners.heartbeat(heartbeats.pool);
          liveness.succeeded();
        },
      },
      {
        name: 'lost-runners',
        everyMs,
        leased: true,
        async run() {
          if (liveness.listening) await runners.markSilentRunnersLost(limits.runnerLostAfterMs);
        },
      },
      {
        name: 'purge-hosts',
        everyMs: PURGE_MS,
        leased: true,
        async run() {
          if (limits.retentionDays === 0) return;
          const removed = await purgeLostRunners(database, limits.retentionDays);
          if (removed > 0)
            log.info({ removed, days: limits.retentionDays }, 'forgot lost hosts without resources');
        },
      },
    ],
  };
}
