/**
 * Tells control what the micro-VMs of this machine have used: the counters of their control groups, as they are. What
 * they mean in credits, and since when they count, is control's business; a reading that is lost costs nothing.
 */
import { type CpuReading, USAGE_MS, USAGE_READINGS_MAX } from '@releap/contract';
import type { Logger } from 'pino';

/** A life of one VMM, and what it has used in it. */
export interface CpuCounter {
  incarnation: string;
  cpuMicros: number;
  ageMicros: number;
}

export interface UsageReporterOptions {
  /** Sandboxes whose micro-VM runs now. */
  running: () => Iterable<string>;
  /** Undefined when there is no such micro-VM any more. */
  read: (vmId: string) => Promise<CpuCounter | undefined>;
  report: (readings: CpuReading[]) => void;
  log: Logger;
  periodMs?: number;
}

export class UsageReporter {
  readonly #options: UsageReporterOptions;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> | undefined;
  /** Those that could not be read are named once, not every ten seconds. */
  readonly #unreadable = new Set<string>();

  constructor(options: UsageReporterOptions) {
    this.#options = options;
  }

  start(): void {
    this.#timer ??= setInterval(() => {
      // One that takes longer than the period is not run beside itself.
      this.#running ??= this.report().finally(() => (this.#running = undefined));
    }, this.#options.periodMs ?? USAGE_MS);
  }

  /** Tells at once: its run begins, or is about to end. */
  tell(vmId: string, counter: CpuCounter): void {
    this.#options.report([toReading(vmId, counter)]);
  }

  /** Reads all of them now and tells. */
  async report(): Promise<void> {
    const { running, read, report, log } = this.#options;
    let readings: CpuReading[] = [];
    const vmIds = [...running()];
    for (const vmId of vmIds) {
      try {
        const counter = await read(vmId);
        if (counter === undefined) continue;
        readings.push(toReading(vmId, counter));
        this.#unreadable.delete(vmId);
      } catch (error) {
        if (!this.#unreadable.has(vmId)) log.warn({ err: error, vm: vmId }, 'its use of CPU cannot be read');
        this.#unreadable.add(vmId);
      }
      if (readings.length === USAGE_READINGS_MAX) {
        report(readings);
        readings = [];
      }
    }
    if (readings.length > 0) report(readings);
    const known = new Set(vmIds);
    for (const vmId of this.#unreadable) if (!known.has(vmId)) this.#unreadable.delete(vmId);
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#running;
  }
}

function toReading(vmId: string, { incarnation, cpuMicros, ageMicros }: CpuCounter): CpuReading {
  return {
    vm_id: vmId,
    incarnation,
    cpu_usec: Math.max(0, Math.round(cpuMicros)),
    age_usec: Math.max(0, Math.round(ageMicros)),
  };
}
