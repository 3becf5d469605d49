import { Counter, Gauge, type Registry } from 'prom-client';

type Values = Readonly<Record<string, number>>;

/** Registers a gauge with one label, which is read at each scrape. @param values by value of the label; must be of a bounded number */
export function labelledGauge(
  registry: Registry,
  name: string,
  help: string,
  label: string,
  values: () => Values | Promise<Values>,
): void {
  const gauge = new Gauge({
    name,
    help,
    labelNames: [label],
    registers: [],
    async collect() {
      const read = await values();
      this.reset();
      for (const [key, value] of Object.entries(read)) this.set({ [label]: key }, value);
    },
  });
  registry.registerMetric(gauge);
}

/** The same for counters that other parts count. */
export function labelledCounter(
  registry: Registry,
  name: string,
  help: string,
  label: string,
  values: () => Values,
): void {
  const counter = new Counter({
    name,
    help,
    labelNames: [label],
    registers: [],
    collect() {
      this.reset();
      for (const [key, value] of Object.entries(values())) this.inc({ [label]: key }, value);
    },
  });
  registry.registerMetric(counter);
}
