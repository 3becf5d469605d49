import { Histogram, type Registry } from 'prom-client';

/** @returns takes the seconds that a sandbox did not run because of its move */
export function moveMetrics(registry: Registry): (seconds: number) => void {
  const pause = new Histogram({
    name: 'releap_sandbox_move_pause_seconds',
    help: 'For how long sandboxes did not run that a drain has moved to another host, from the drain until they ran there',
    buckets: [0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600],
    registers: [registry],
  });
  return (seconds) => pause.observe(seconds);
}
