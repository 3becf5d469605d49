/**
 * Records what the sandboxes of this machine use: reads the counters of their micro-VMs, keeps what was used in each minute
 * on disk, and hands it over for control. A sandbox is read when its run begins, regularly, and before it ends.
 */
import type { UsageOfRun } from '@releap/contract';
import type { UsagePiece } from '@releap/contract/runner';
import type { Logger } from 'pino';
import { COUNTERS, growth, type Counters, type Reading } from './counters.ts';
import {
  type CounterReader,
  type CounterSource,
  type InterfaceCounters,
  readInterfaces,
} from './counter-reader.ts';
import { type Bucket, type LedgerState, MINUTE_MS, UsageLedger } from './usage-ledger.ts';
import { UsageSpool } from './usage-spool.ts';
import type { CpuCounter } from './usage-reporter.ts';

const SAMPLE_MS = 20_000;
/** Micro-VMs that are read before other work gets its turn. */
const BATCH = 32;

interface State {
  ledger: LedgerState;
  sources: [string, CounterSource][];
}

type Event = { vm: string; source?: CounterSource; reading?: Reading } | { vm: string; end: true };

export interface UsageMeterOptions {
  /** Absolute. */
  folder: string;
  reader: Pick<CounterReader, 'read' | 'cpu'>;
  /** Default: those of this host. */
  interfaces?: () => InterfaceCounters;
  log: Logger;
  periodMs?: number;
  /** Time of day in milliseconds, instead of this machine's; for measurements. */
  now?: () => number;
}

export interface UsageListener {
  /** After each pass: messages may wait. */
  onPass: () => void;
  /** CPU time of a sandbox when its run begins, and before it ends: between readings burst would be free. */
  onEdge: (vmId: string, counter: CpuCounter) => void;
}

export class UsageMeter {
  readonly spool: UsageSpool<State, Event>;
  readonly #options: UsageMeterOptions;
  readonly #interfaces: () => InterfaceCounters;
  readonly #ledger: UsageLedger;
  readonly #sources: Map<string, CounterSource>;
  #listener: UsageListener | undefined;
  #minute = 0;
  /** Since the last commit. */
  #hasEnded = false;
  #timer: NodeJS.Timeout | undefined;
  #passing: Promise<void> | undefined;
  /** A failure to write is logged once, until it succeeds. */
  #hasFailed = false;

  /** Continues from what an earlier runner has left, and reads what can still be read of its micro-VMs. */
  constructor(options: UsageMeterOptions) {
    this.#options = options;
    this.#interfaces = options.interfaces ?? readInterfaces;
    this.spool = new UsageSpool({ folder: options.folder, log: options.log });
    const { state, events } = this.spool.restored;
    this.#ledger = new UsageLedger(state?.ledger);
    this.#sources = new Map(state?.sources);
    for (const event of events) this.#apply(event);
    const interfaces = this.#interfaces();
    for (const vmId of this.#sources.keys()) this.#read(vmId, interfaces);
  }

  listen(listener: UsageListener): void {
    this.#listener = listener;
  }

  start(): void {
    this.#timer ??= setInterval(() => {
      // One that takes longer than the period is not run beside itself.
      this.#passing ??= this.pass()
        .catch((error: unknown) => this.#failed(error))
        .finally(() => (this.#passing = undefined));
    }, this.#options.periodMs ?? SAMPLE_MS);
  }

  /** A micro-VM runs as this sandbox from now on, or was found again. */
  begin(vmId: string, source: CounterSource): void {
    this.#sources.set(vmId, source);
    this.#journal({ vm: vmId, source });
    this.sample(vmId);
    this.#edge(vmId);
  }

  /** Reads one sandbox now: its VMM is about to end. */
  sample(vmId: string): void {
    const reading = this.#read(vmId, this.#interfaces());
    if (reading !== undefined) this.#journal({ vm: vmId, reading });
  }

  /** The micro-VM is about to be removed. Repeatable, also for a sandbox that never ran. */
  end(vmId: string): void {
    if (!this.#sources.has(vmId)) return;
    this.#hasEnded = true;
    this.sample(vmId);
    this.#edge(vmId);
    const event: Event = { vm: vmId, end: true };
    this.#apply(event);
    this.#journal(event);
  }

  /** Ends every sandbox without a micro-VM: it ended while no runner ran. */
  retain(isLive: (vmId: string) => boolean): void {
    for (const vmId of this.#sources.keys()) if (!isLive(vmId)) this.end(vmId);
  }

  /** CPU time of a running micro-VM. */
  cpu(vmId: string): CpuCounter | undefined {
    const source = this.#sources.get(vmId);
    return source === undefined ? undefined : this.#options.reader.cpu(source);
  }

  /** What a sandbox has used in its present run, read now; undefined when it does not run. */
  usageOf(vmId: string): UsageOfRun | undefined {
    this.#read(vmId, this.#interfaces());
    const mark = this.#ledger.mark(vmId);
    if (mark === undefined) return undefined;
    const { first, last } = mark;
    const used = Object.fromEntries(
      COUNTERS.map((name) => [name, growth(first[name], last[name])]),
    ) as unknown as Counters;
    return {
      at: new Date(last.atMs).toISOString(),
      duration_ms: last.uptimeMs - first.uptimeMs,
      cpu_core_s: used.cpuMicros / 1e6,
      disk_read_bytes: used.diskReadBytes,
      disk_write_bytes: used.diskWriteBytes,
      net_rx_bytes: used.netRxBytes,
      net_tx_bytes: used.netTxBytes,
      mem_bytes: last.memoryKib * 1024,
      disk_bytes: last.diskBytes,
    };
  }

  /**
   * Reads all of them, their disks once a minute. Writes down what is complete, once a minute and after a sandbox has ended.
   */
  async pass(): Promise<void> {
    const interfaces = this.#interfaces();
    const minute = Math.floor((this.#options.now ?? Date.now)() / MINUTE_MS);
    const withDisks = minute !== this.#minute;
    let read = 0;
    for (const vmId of this.#sources.keys()) {
      this.#read(vmId, interfaces, { isLive: true, withDisks });
      if (++read % BATCH === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    if (minute !== this.#minute || this.#hasEnded) this.commit();
    this.#minute = minute;
    this.#listener?.onPass();
  }

  /** Writes down all complete minutes, and what the next ones continue from. */
  commit(): void {
    const taken = this.#ledger.take();
    if (taken.length === 0 && this.#sources.size === 0) return;
    try {
      this.spool.commit(
        { ledger: this.#ledger.state, sources: [...this.#sources] },
        taken.filter((bucket) => bucket.durationMs > 0).map(toPiece),
      );
      this.#hasFailed = false;
      this.#hasEnded = false;
    } catch (error) {
      this.#ledger.putBack(taken);
      this.#failed(error);
    }
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#passing;
    await this.pass();
    this.commit();
  }

  #apply(event: Event): void {
    if ('end' in event) {
      this.#sources.delete(event.vm);
      this.#ledger.end(event.vm);
      return;
    }
    if (event.source !== undefined) this.#sources.set(event.vm, event.source);
    if (event.reading !== undefined) this.#ledger.add(event.vm, event.reading);
  }

  #read(
    vmId: string,
    interfaces: InterfaceCounters,
    { isLive, withDisks } = { isLive: false, withDisks: true },
  ): Reading | undefined {
    const source = this.#sources.get(vmId);
    if (source === undefined) return undefined;
    const last = this.#ledger.mark(vmId)?.last;
    const reading = this.#options.reader.read(source, { interfaces, last, isLive, withDisks });
    if (reading !== undefined) this.#ledger.add(vmId, reading);
    return reading;
  }

  #edge(vmId: string): void {
    try {
      const counter = this.cpu(vmId);
      if (counter !== undefined) this.#listener?.onEdge(vmId, counter);
    } catch (error) {
      this.#options.log.warn({ err: error, vm: vmId }, 'its use of CPU cannot be read');
    }
  }

  #journal(event: Event): void {
    try {
      this.spool.append(event);
    } catch (error) {
      this.#failed(error);
    }
  }

  #failed(error: unknown): void {
    if (!this.#hasFailed)
      this.#options.log.warn({ err: error }, 'use could not be recorded; what is in memory is written later');
    this.#hasFailed = true;
  }
}

function toPiece(bucket: Bucket): UsagePiece {
  return {
    vm_id: bucket.vmId,
    minute: bucket.minute,
    duration_ms: bucket.durationMs,
    cpu_usec: bucket.cpuMicros,
    memory_kib_ms: bucket.memoryKibMs,
    disk_peak_bytes: bucket.diskPeakBytes,
    disk_read_bytes: bucket.diskReadBytes,
    disk_write_bytes: bucket.diskWriteBytes,
    net_rx_bytes: bucket.netRxBytes,
    net_tx_bytes: bucket.netTxBytes,
  };
}
