import { ApiError } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { Counter, type Registry } from 'prom-client';
import { cachedSource, sourceGauge } from '../../platform/metrics/scraped.ts';

const UNCOMMITTED = statement<{ age: number }>(
  'metrics-volumes-uncommitted',
  `select coalesce(extract(epoch from now() - min(c.dirty_since)), 0)::double precision as age
     from volume_copies c where c.desired = 'present' and c.dirty_since is not null`,
);

export interface VolumeMetrics {
  register(registry: Registry): void;
  /** Counts the outcome of a commit of a host. */
  commit<T>(commit: Promise<T>): Promise<T>;
}

export function createVolumeMetrics({ pool }: Database, log: Logger): VolumeMetrics {
  const commits = new Counter({
    name: 'releap_volume_commits_total',
    help: 'Commits of volumes by hosts that this server has answered',
    labelNames: ['outcome'],
    registers: [],
  });
  const outcomeOf = (error: unknown): string => {
    if (!(error instanceof ApiError)) return 'failed';
    return error.status === 409 ? 'moved' : 'refused';
  };
  return {
    register(registry) {
      registry.registerMetric(commits);
      sourceGauge(
        registry,
        cachedSource(log, () => queryOne(pool, UNCOMMITTED)),
        'releap_volume_uncommitted_seconds',
        'Age of the oldest change of a volume that no host has committed',
        ({ age }) => age,
      );
    },
    async commit(commit) {
      try {
        const committed = await commit;
        commits.inc({ outcome: 'committed' });
        return committed;
      } catch (error) {
        commits.inc({ outcome: outcomeOf(error) });
        throw error;
      }
    },
  };
}
