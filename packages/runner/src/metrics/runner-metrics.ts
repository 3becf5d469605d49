import { collectDefaultMetrics, type Registry } from 'prom-client';
import { hostMetrics, type HostMetricsSources } from './host-metrics.ts';
import type { OperationMetrics } from './operation-metrics.ts';
import { startMetrics } from './start-metrics.ts';

export interface RunnerMetricsSources extends HostMetricsSources {
  starts: Parameters<typeof startMetrics>;
  operations: OperationMetrics;
}

/** All metrics of a runner, with those of its process. Labels have bounded values. */
export function runnerMetrics({ starts, operations, ...host }: RunnerMetricsSources): Registry {
  const registry = startMetrics(...starts);
  operations.register(registry);
  hostMetrics(registry, host);
  collectDefaultMetrics({ register: registry, prefix: 'releap_' });
  return registry;
}
