/**
 * Counters and histograms of the control plane. docs/observability.md lists every metric. Labels have bounded values:
 * names from tables in the code, never ids, addresses or paths of requests.
 */
import type { Operation } from '@releap/contract';
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { TaskRun } from '../work/task.ts';

export type ObserveRequest = (operation: Operation, status: number, seconds: number) => void;

/** Requests of the operations of all planes. */
export function requestMetrics(registry: Registry): ObserveRequest {
  const requests = new Counter({
    name: 'releap_http_requests_total',
    help: 'Requests answered, by plane, operation (method and route pattern) and status class',
    labelNames: ['plane', 'operation', 'status'],
    registers: [registry],
  });
  const duration = new Histogram({
    name: 'releap_http_request_duration_seconds',
    help: 'Time from the head of a request to the end of its response; long polls include their wait',
    labelNames: ['plane', 'operation'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    registers: [registry],
  });
  return ({ method, path, security: plane }, status, seconds) => {
    const operation = `${method} ${path}`;
    requests.inc({ plane, operation, status: `${Math.floor(status / 100)}xx` });
    duration.observe({ plane, operation }, seconds);
  };
}

/** Runs of periodic tasks. */
export function taskMetrics(registry: Registry): (run: TaskRun) => void {
  const runs = new Counter({
    name: 'releap_task_runs_total',
    help: 'Runs of periodic tasks by outcome; not-leader: another server holds the lease',
    labelNames: ['task', 'outcome'],
    registers: [registry],
  });
  const duration = new Histogram({
    name: 'releap_task_duration_seconds',
    help: 'Duration of runs of periodic tasks',
    labelNames: ['task'],
    buckets: [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60],
    registers: [registry],
  });
  const succeeded = new Gauge({
    name: 'releap_task_last_success_timestamp_seconds',
    help: 'Unix time of the last successful run of a periodic task on this server',
    labelNames: ['task'],
    registers: [registry],
  });
  return ({ task, outcome, seconds }) => {
    runs.inc({ task, outcome });
    if (outcome === 'not-leader' || outcome === 'busy') return;
    duration.observe({ task }, seconds);
    if (outcome === 'ok') succeeded.setToCurrentTime({ task });
  };
}

export type ResourceKind = 'sandbox' | 'snapshot';

/** Committed transitions, and the wait of sandboxes for a host. */
export function transitionMetrics(
  registry: Registry,
): (resource: ResourceKind, event: string, row: { created_at: Date; updated_at: Date }) => void {
  const transitions = new Counter({
    name: 'releap_transitions_total',
    help: 'Committed transitions of sandboxes and snapshots by event',
    labelNames: ['resource', 'event'],
    registers: [registry],
  });
  const placement = new Histogram({
    name: 'releap_placement_duration_seconds',
    help: 'Time from the creation of a sandbox to its assignment to a host',
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120],
    registers: [registry],
  });
  return (resource, event, { created_at, updated_at }) => {
    transitions.inc({ resource, event });
    if (resource === 'sandbox' && event === 'place')
      // Both times are the database's.
      placement.observe(Math.max(0, updated_at.getTime() - created_at.getTime()) / 1000);
  };
}
