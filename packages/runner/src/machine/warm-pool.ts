import { randomBytes } from 'node:crypto';
import type { Logger } from 'pino';
import { awaitAgent } from '../template/agent-hello.ts';
import type { Shape } from '../template/shape.ts';
import type { Vm } from '../vmm/vm.ts';
import type { BootOptions, Machines, RunningVm, SandboxDisks, VmSlot } from './machines.ts';

/** What a waiting VM keeps of the host's memory, rounded up: measured 60 MB proportional, emulated. */
const WARM_VM_MIB = 96;
const AGENT_DEADLINE_MS = 30_000;
const RETRY_MIN_MS = 1_000;
const RETRY_MAX_MS = 60_000;

/** Where the pool gets network slots; `id` is the name of the waiting VM. */
export interface SlotSource<S extends VmSlot> {
  take(id: string): Promise<S>;
  release(id: string): Promise<void>;
}

export interface WarmPoolOptions<S extends VmSlot> {
  machines: Machines;
  slots: SlotSource<S>;
  /** Resolves when a core is free for making VMs ahead of time. Default: at once. */
  spare?: (signal: AbortSignal) => Promise<void>;
  shape: Shape;
  /** VMs to keep waiting; 0 for none. */
  size: number;
  /** Host memory that waiting VMs may take, MiB: a bound on `size`. */
  budgetMib: number;
  /** Largest disk that a VM from the pool can be given; a sandbox that wants more is started directly. */
  diskMaxMib: number;
  /** Quiet time after a take before the next VM is made: a create in flight needs the cores more. Default 500 ms. */
  refillDelayMs?: number;
  /**
   * Run in each new VM before it waits, so that an emulator has translated what comes next and a kernel has what it
   * needs in its caches. The guest has disks meanwhile, and must hold nothing of them afterwards. A rehearsal that
   * fails costs the VM.
   */
  rehearsal?: () => Promise<{ disks: SandboxDisks; run: (vm: RunningVm) => Promise<void> }>;
  log: Logger;
}

/** A VM that was taken out of the pool, and belongs to the taker alone. Attach or discard it. */
export interface WarmVm<S extends VmSlot> {
  /** Its name until `attach`; its slot is held under this name. */
  id: string;
  slot: S;
  attach(options: Omit<BootOptions, 'slot' | 'shape'> & { persistent?: boolean }): Promise<RunningVm>;
  discard(): Promise<void>;
}

interface Waiting<S> {
  id: string;
  slot: S;
  vm: Vm;
}

/**
 * VMs of one shape that are restored already, whose agent has answered, and that stand still until they are taken:
 * what is left of a create is to put its disks in. They have no identity, disks or secrets of anybody.
 */
export class WarmPool<S extends VmSlot> {
  readonly #options: WarmPoolOptions<S>;
  readonly #target: number;
  readonly #waiting: Waiting<S>[] = [];
  #filling: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #retryMs = RETRY_MIN_MS;
  readonly #closed = new AbortController();

  constructor(options: WarmPoolOptions<S>) {
    this.#options = options;
    this.#target = Math.min(options.size, Math.floor(options.budgetMib / WARM_VM_MIB));
    if (this.#target < options.size) {
      options.log.warn(
        { wanted: options.size, kept: this.#target, budget_mib: options.budgetMib },
        'fewer waiting VMs than configured: their memory budget is too small',
      );
    }
  }

  /** Begins to fill in the background. */
  start(): void {
    this.#schedule(0);
  }

  /** How many wait. */
  get size(): number {
    return this.#waiting.length;
  }

  /** A waiting VM that suits, or undefined. What one caller gets no other ever does. */
  take(wanted: {
    shape: Shape;
    scratchMib: number;
    dockerDataMib?: number | undefined;
  }): WarmVm<S> | undefined {
    const { shape, diskMaxMib, machines, slots, refillDelayMs = 500 } = this.#options;
    if (wanted.shape.vcpus !== shape.vcpus || wanted.shape.memMib !== shape.memMib) return undefined;
    if (Math.max(wanted.scratchMib, wanted.dockerDataMib ?? 0) > diskMaxMib) return undefined;
    const warm = this.#waiting.shift();
    if (warm === undefined) return undefined;
    this.#schedule(refillDelayMs);
    return {
      id: warm.id,
      slot: warm.slot,
      attach: (options) =>
        machines.attach(warm.vm, warm.id, { ...options, warmedUp: this.#options.rehearsal !== undefined }),
      discard: async () => {
        warm.vm.detach();
        await machines.destroy(warm.id);
        await slots.release(warm.id);
      },
    };
  }

  /** Stops filling and removes those that wait. */
  async close(): Promise<void> {
    this.#closed.abort(new Error('the pool is closed'));
    clearTimeout(this.#timer);
    await this.#filling;
    for (const warm of this.#waiting.splice(0)) await this.#remove(warm.id, warm.vm);
  }

  #schedule(delayMs: number): void {
    if (this.#closed.signal.aborted || this.#target === 0) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#filling ??= this.#fill().finally(() => {
        this.#filling = undefined;
      });
    }, delayMs);
    this.#timer.unref();
  }

  async #fill(): Promise<void> {
    const { signal } = this.#closed;
    while (!signal.aborted && this.#waiting.length < this.#target) {
      try {
        await this.#options.spare?.(signal);
        await this.#add();
        this.#retryMs = RETRY_MIN_MS;
      } catch (error) {
        if (signal.aborted) return;
        this.#options.log.warn({ err: error, retry_ms: this.#retryMs }, 'no VM could be made to wait');
        // Scheduled after this run has ended, or it would find it still running.
        setImmediate(() => this.#schedule(this.#retryMs));
        this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MAX_MS);
        return;
      }
    }
  }

  async #add(): Promise<void> {
    const { machines, slots, shape, diskMaxMib } = this.#options;
    const id = `warm-${randomBytes(8).toString('hex')}`;
    let vm: Vm | undefined;
    try {
      const rehearsal = await this.#options.rehearsal?.();
      const slot = await slots.take(id);
      const made = await machines.bootBlank({
        vmId: id,
        slot,
        shape,
        cpu: { guaranteed: 0.125, max: shape.vcpus },
        ...(rehearsal && { disks: rehearsal.disks }),
        diskMaxMib,
      });
      vm = made.vm;
      await awaitAgent(made.agentSocketPath, { deadlineMs: AGENT_DEADLINE_MS, alive: () => !made.vm.exited });
      await rehearsal?.run(made);
      // While it waits it takes no time of anybody.
      await made.vm.stop();
      made.vm.onExit(() => {
        const at = this.#waiting.findIndex((warm) => warm.id === id);
        if (at < 0) return;
        this.#waiting.splice(at, 1);
        void this.#remove(id, made.vm).finally(() => this.#schedule(RETRY_MIN_MS));
      });
      this.#waiting.push({ id, slot, vm: made.vm });
      this.#options.log.debug({ vm: id }, 'a micro-VM waits');
    } catch (error) {
      await this.#remove(id, vm);
      throw error;
    }
  }

  async #remove(id: string, vm: Vm | undefined): Promise<void> {
    const { machines, slots, log } = this.#options;
    try {
      vm?.detach();
      await machines.destroy(id);
      await slots.release(id);
    } catch (error) {
      // The next start of the service reclaims it.
      log.error({ err: error, vm: id }, 'a waiting VM could not be removed');
    }
  }
}
