/** `GET /metrics`, and the metrics of the process and its database connections. */
import type { Database } from '@releap/database';
import type { Registry } from 'prom-client';
import { operatorOperations } from '@releap/contract';
import { collectDefaultMetrics, Gauge } from 'prom-client';
import type { Module } from '../module.ts';

export interface MetricsModuleOptions {
  database: Database;
  heartbeats: Database;
  metrics: Registry;
}

export function metricsModule({ database, heartbeats, metrics }: MetricsModuleOptions): Module {
  return {
    name: 'metrics',
    routes({ operator }) {
      operator.operation(operatorOperations.getMetrics, () => metrics.metrics());
    },
    metrics(registry) {
      collectDefaultMetrics({ register: registry, prefix: 'releap_' });
      const pools = { main: database.pool, heartbeat: heartbeats.pool };
      const ofPools = (name: string, help: string, read: (pool: typeof database.pool) => number): void => {
        registry.registerMetric(
          new Gauge({
            name,
            help,
            labelNames: ['pool'],
            registers: [],
            collect() {
              for (const [pool, one] of Object.entries(pools)) this.set({ pool }, read(one));
            },
          }),
        );
      };
      ofPools(
        'releap_database_pool_connections',
        'Open database connections, idle ones included',
        (pool) => pool.totalCount,
      );
      ofPools('releap_database_pool_idle_connections', 'Idle database connections', (pool) => pool.idleCount);
      ofPools(
        'releap_database_pool_waiting_requests',
        'Requests that wait for a database connection',
        (pool) => pool.waitingCount,
      );
    },
  };
}
