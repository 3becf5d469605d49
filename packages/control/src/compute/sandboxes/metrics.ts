import { SANDBOX_STATUSES } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { Gauge, type Registry } from 'prom-client';
import { cachedSource } from '../../platform/metrics/scraped.ts';

/** Deleted sandboxes are not counted: there may be millions. */
const COUNTED = SANDBOX_STATUSES.filter((status) => status !== 'deleted');

const COUNTS = statement<{ status: string; count: number }>(
  'metrics-sandboxes',
  `select status, count(*)::integer as count from sandboxes where status <> 'deleted' group by status`,
);

export function sandboxMetrics(registry: Registry, database: Database, log: Logger): void {
  const counts = cachedSource(log, () => queryAll(database.pool, COUNTS));
  registry.registerMetric(
    new Gauge({
      name: 'releap_sandboxes',
      help: 'Sandboxes of the whole deployment by status, without deleted ones',
      labelNames: ['status'],
      registers: [],
      async collect() {
        const rows = await counts();
        this.reset();
        if (rows === undefined) return;
        const found = new Map(rows.map(({ status, count }) => [status, count]));
        for (const status of COUNTED) this.set({ status }, found.get(status) ?? 0);
      },
    }),
  );
}
