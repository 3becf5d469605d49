import { Histogram, type Registry } from 'prom-client';

/** What a runner does with a sandbox. `boot`: of a new micro-VM or from its disk. */
export type Operation = 'boot' | 'resume' | 'fork' | 'pause' | 'stop' | 'snapshot';

/** From milliseconds under KVM to the deadlines of an emulated host. */
const BUCKETS_S = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 90];

/** How long operations on sandboxes take, and how they end. docs/observability.md lists the metric. */
export class OperationMetrics {
  readonly #duration = new Histogram({
    name: 'releap_operation_duration_seconds',
    help: 'Duration of operations on sandboxes; pulls of images and waits before them are not included',
    labelNames: ['operation', 'outcome'],
    buckets: BUCKETS_S,
    registers: [],
  });

  register(registry: Registry): void {
    registry.registerMetric(this.#duration);
  }

  /** @param signal aborted: `work` was given up because something else is wanted of the sandbox now */
  async run<T>(operation: Operation, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const end = this.#duration.startTimer({ operation });
    try {
      const result = await work();
      end({ outcome: 'ok' });
      return result;
    } catch (error) {
      end({ outcome: signal?.aborted === true ? 'cancelled' : 'failed' });
      throw error;
    }
  }
}
