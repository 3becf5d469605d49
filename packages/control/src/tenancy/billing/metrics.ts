import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { Gauge, type Registry } from 'prom-client';
import { cachedSource } from '../../platform/metrics/scraped.ts';

interface Meters {
  lag: number;
  parked: number;
}

const METERS = statement<Meters>(
  'metrics-meters',
  `select greatest(0, coalesce(extract(epoch from now() - min(uncharged)), 0))::double precision as lag,
          (count(*) filter (where parked_until > now()))::integer as parked
     from (select metered_until as uncharged, parked_until from sandbox_meters
           union all select since, parked_until from function_meters where since is not null) m`,
);

export function billingMetrics(registry: Registry, database: Database, log: Logger): void {
  const meters = cachedSource(log, () => queryOne(database.pool, METERS, []));
  const ofMeters = (name: string, help: string, field: keyof Meters): void => {
    registry.registerMetric(
      new Gauge({
        name,
        help,
        // Without a value there is no sample: zero would mean that nothing is uncharged.
        labelNames: [],
        registers: [],
        async collect() {
          const row = await meters();
          if (row === undefined) this.remove();
          else this.set(row[field]);
        },
      }),
    );
  };
  ofMeters(
    'releap_billing_ledger_lag_seconds',
    'Age of the oldest uncharged use: time since the last charge of the meter that was charged longest ago',
    'lag',
  );
  ofMeters('releap_billing_parked_meters', 'Meters parked because they could not be charged', 'parked');
}
