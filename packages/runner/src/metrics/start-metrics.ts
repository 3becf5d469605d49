import { Counter, Gauge, Registry } from 'prom-client';
import type { ImageStore } from '../image/image-store.ts';
import { imageMetrics } from './image-metrics.ts';
import { labelledGauge } from './labelled.ts';
import type { Admission, WarmPoolStats } from '../machine/index.ts';

/** Metrics of how sandboxes start on this machine, and of its images. docs/observability.md lists them. Labels have bounded values. */
export function startMetrics(
  admission: Admission,
  pools: () => WarmPoolStats[],
  images: Pick<ImageStore, 'stats'>,
): Registry {
  const registry = new Registry();
  const gauge = (name: string, help: string, value: (stats: WarmPoolStats) => number): void =>
    labelledGauge(registry, name, help, 'recipe', () =>
      Object.fromEntries(pools().map((stats) => [stats.recipe, value(stats)])),
    );
  gauge('releap_warm_vms', 'VMs that wait for a sandbox', ({ waiting }) => waiting);
  gauge('releap_warm_vms_wanted', 'VMs that ought to wait, as demand says', ({ wanted }) => wanted);
  gauge('releap_warm_vms_bytes', 'Proportional set size of the VMs that wait', ({ mib }) => mib * 2 ** 20);
  const taken = new Counter({
    name: 'releap_warm_vms_taken_total',
    help: 'How often a waiting VM was asked for; hit: one waited, miss: none did',
    labelNames: ['recipe', 'outcome'],
    registers: [],
    collect() {
      this.reset();
      for (const { recipe, hits, misses } of pools()) {
        this.inc({ recipe, outcome: 'hit' }, hits);
        this.inc({ recipe, outcome: 'miss' }, misses);
      }
    },
  });
  const starts = new Gauge({
    name: 'releap_starts_waiting',
    help: 'Starts of sandboxes that wait for their turn',
    registers: [],
    collect() {
      this.set(admission.waiting);
    },
  });
  imageMetrics(registry, images);
  registry.registerMetric(taken);
  registry.registerMetric(starts);
  return registry;
}
