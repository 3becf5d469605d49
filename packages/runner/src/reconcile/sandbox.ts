import { conflict } from '@releap/contract';
import type { Logger } from 'pino';
import { traced } from '@releap/tracing';
import type { Assignment, Observation } from './assignment.ts';
import type { SnapshotFacts } from '../machine/index.ts';
import type { OperationMetrics } from '../metrics/operation-metrics.ts';
import type { LiveSandbox, SandboxHost } from './sandbox-host.ts';
import type { RecordStore, SandboxRecord } from './sandbox-record.ts';
import { SandboxState } from './sandbox-state.ts';
import { SandboxWork } from './sandbox-work.ts';
import type { ForkLease } from './sandbox-work.ts';
import { StepQueue } from './step-queue.ts';

export interface SandboxDeps {
  host: SandboxHost;
  /** Another sandbox of this machine. */
  find: (vmId: string) => Sandbox | undefined;
  operations: OperationMetrics;
  records: RecordStore;
  report: (observation: Observation) => void;
  log: Logger;
}

/** A call waits for the clock of a thawed guest for so long; a guest that does not answer gets the call all the same. */
const THAWED_CLOCK_MS = 1_000;
/** Delay before a guest's clock is set again; it doubles with each failure. */
const CLOCK_RETRY_MS = { first: 1_000, most: 60_000 };

/**
 * Reconciles one sandbox of this machine, one step after the other. Steps never overlap; a newer assignment interrupts the
 * current step. All steps are idempotent and may be repeated after a crash.
 *
 * If the desired status is impossible, the actual one is reported (docs/runner-protocol.md): a sandbox that could not be
 * paused is running, one that could not be resumed or started is paused or stopped, as long as no data was lost.
 */
export class Sandbox {
  readonly vmId: string;
  readonly #deps: SandboxDeps;
  readonly #log: Logger;
  readonly #state: SandboxState;
  readonly #steps: StepQueue;
  readonly #work: SandboxWork;
  #clockRetry: NodeJS.Timeout | undefined;
  /** Aborted when the sandbox is to be deleted, which is final. */
  readonly #deletion = new AbortController();
  #isCompacting = false;

  constructor(deps: SandboxDeps, assignment: Assignment, record?: SandboxRecord) {
    this.vmId = assignment.vm_id;
    this.#deps = deps;
    this.#log = deps.log.child({ vm: assignment.vm_id });
    this.#state = new SandboxState({ ...deps, log: this.#log }, assignment, record);
    this.#work = new SandboxWork(
      {
        state: this.#state,
        host: deps.host,
        operations: deps.operations,
        log: this.#log,
        deletion: this.#deletion.signal,
        onExit: () => this.#handleExit(),
        onClockOff: () => this.setClock(),
      },
      record !== undefined,
    );
    this.#steps = new StepQueue(this.#log, () => {
      this.#handleExit();
      this.#compactDisk();
    });
  }

  get live(): LiveSandbox | undefined {
    return this.#work.live;
  }

  get observation(): Observation {
    return this.#state.observation;
  }

  get isRunning(): boolean {
    return this.#state.observation.status === 'running' && this.live !== undefined;
  }

  get isPersistent(): boolean {
    return this.#state.isPersistent;
  }

  /**
   * Whether the sandbox has ended for good: there is no newer assignment and no step in progress. A sandbox with a disk has
   * ended only when it is deleted.
   */
  isOver({ generation, status }: Observation): boolean {
    if (status !== 'deleted' && (status !== 'failed' || this.isPersistent)) return false;
    const now = this.observation;
    return (
      now.status === status &&
      now.generation === generation &&
      this.#state.assignment.generation === generation &&
      !this.#steps.busy
    );
  }

  /** Applies an assignment. An older or the same generation changes nothing. */
  want(assignment: Assignment): void {
    if (assignment.generation < this.#state.assignment.generation) return;
    const isNew = assignment.generation > this.#state.assignment.generation;
    this.#state.assignment = assignment;
    if (assignment.desired === 'deleted') this.#deletion.abort(new Error('the sandbox is to be deleted'));
    if (!isNew && this.#steps.busy) return;
    if (!isNew && this.#state.isSettled(this.live !== undefined)) {
      this.#steps.begin(async () => await this.#work.repeat());
      return;
    }
    this.converge();
  }

  /** After a restart of the runner: adopts the VMM, or cleans up after it. */
  async adopt(): Promise<void> {
    this.#steps.begin(async () => await this.#work.recover());
    await this.idle();
  }

  /** Starts the next step; interrupts the current one first. */
  converge(): void {
    // Queued at the source now: a fork captures the source's present state.
    let first = this.#leaseOfSource();
    this.#steps.begin(async (signal) => {
      const lease = first ?? this.#leaseOfSource();
      first = undefined;
      try {
        this.#state.served = this.#state.assignment;
        const { desired, traceparent = '', vm_id: id } = this.#state.served;
        await traced(
          `reconcile sandbox to ${desired}`,
          async () => await this.#work.converge(signal, lease),
          {
            parent: traceparent,
            attributes: { 'releap.sandbox.id': id },
          },
        );
      } finally {
        lease?.release();
      }
    });
  }

  /** Resolves when no step runs. */
  async idle(): Promise<void> {
    await this.#steps.idle();
  }

  /** The service is stopping: ends the VM and reports why. A persistent sandbox can be started again. */
  async shutDown(reason: string): Promise<void> {
    await this.#steps.interrupt(reason);
    if (this.#state.isSettled(this.live !== undefined) && this.#state.observation.status !== 'running')
      return;
    this.#steps.begin(async () => await this.#work.drain(reason));
    await this.idle();
  }

  /** Whether it may have persistent data on this host. */
  get hasPersistentBytes(): boolean {
    return this.isPersistent && this.#state.observation.status !== 'deleted';
  }

  /**
   * Control no longer names the sandbox: ends its VM; persistent data stays.
   * @throws when a resource could not be removed; the caller retries
   */
  async leave(): Promise<void> {
    const reason = 'control does not name this sandbox any more';
    await this.#steps.interrupt(reason);
    await this.#steps.runExclusive(async () => {
      if (!this.hasPersistentBytes) return await this.#work.destroy();
      const { status } = this.#state.observation;
      if (status === 'running' || !this.#state.isSettled(this.live !== undefined))
        await this.#work.drain(reason);
      await this.#work.end();
    });
  }

  /** Detaches from the VM without ending it: the next runner adopts it. */
  async detach(): Promise<void> {
    await this.#steps.interrupt('the runner stops');
    await this.#work.release();
  }

  /** Takes a snapshot while it runs. Other steps wait. @throws when it does not run */
  async snapshot(id: string, kind: 'disk' | 'full', parentId: string | undefined): Promise<SnapshotFacts> {
    return await this.#steps.runExclusive(async () => {
      const { manifest } = this.#state.past;
      if (!this.live || manifest === undefined) {
        throw new Error(`the sandbox is ${this.#state.observation.status}, and must be running`);
      }
      const { live } = this;
      return await this.#deps.operations.run(
        'snapshot',
        async () => await live.snapshot(id, kind, manifest, parentId),
      );
    });
  }

  /** Captures it as a snapshot while it is stopped or paused. Other steps wait. @throws when it is neither */
  async captureResting(id: string): Promise<void> {
    await this.#steps.runExclusive(async () => {
      const { observation, past, served } = this.#state;
      const { status } = observation;
      const manifest = past.manifest ?? served.spec.disk_manifest;
      if (this.live !== undefined || (status !== 'stopped' && status !== 'paused') || manifest === undefined)
        throw new Error(`the sandbox is ${status}, and must be stopped or paused`);
      await this.#deps.operations.run(
        'snapshot',
        async () => await this.#deps.host.captureResting(this.vmId, id, manifest),
      );
    });
  }

  /**
   * Sets the guest's clock, between two steps: a step may have frozen the guest. Repeats it until it has succeeded: a step
   * interrupts it, and a guest that has just been blocked may answer late.
   */
  setClock(retryMs = CLOCK_RETRY_MS.first): void {
    const { live } = this;
    clearTimeout(this.#clockRetry);
    if (live === undefined) return;
    this.#steps
      .runExclusive(async (signal) => {
        // A thaw sets it.
        if (!live.isFrozen) await live.setClock(signal);
      })
      .catch((error: unknown) => {
        if (this.live !== live) return;
        this.#log.warn({ err: error, retryMs }, 'the clock of a guest could not be set');
        const next = Math.min(2 * retryMs, CLOCK_RETRY_MS.most);
        this.#clockRetry = setTimeout(() => this.setClock(next), retryMs).unref();
      });
  }

  /** Stops its virtual processors, as it is idle. @throws ApiError 409 when it does not run, or after a thaw of another turn */
  async freeze(turn: string): Promise<void> {
    await this.#steps.runExclusive(async () => {
      const live = this.#running();
      await live.freeze(turn);
    });
  }

  /** Resumes them, and sets the guest's clock. @throws ApiError 409 when it does not run */
  async thaw(turn: string): Promise<void> {
    const live = await this.#steps.runExclusive(async (signal) => {
      const live = this.#running();
      if (!(await live.thaw(turn))) return undefined;
      const patience = AbortSignal.any([signal, AbortSignal.timeout(THAWED_CLOCK_MS)]);
      return await live.setClock(patience).then(
        () => undefined,
        () => live,
      );
    });
    if (live !== undefined && live === this.live) this.setClock();
  }

  #running(): LiveSandbox {
    const { status } = this.#state.observation;
    if (this.live === undefined) throw conflict(`the sandbox is ${status}, and must be running`);
    return this.live;
  }

  /** Lease of the step queue of the source, if this is a fork that was not captured yet. */
  #leaseOfSource(): ForkLease | undefined {
    const { desired, spec } = this.#state.assignment;
    if (desired === 'deleted' || spec.origin?.type !== 'fork' || !spec.persistent) return undefined;
    if (this.live !== undefined || this.#state.past.manifest !== undefined) return undefined;
    const source = this.#deps.find(spec.origin.vm_id);
    return source === undefined || source === this ? undefined : source.#acquireFork();
  }

  #acquireFork(): ForkLease {
    const work = this.#work;
    const { past } = this.#state;
    const source = {
      get live() {
        return work.live;
      },
      get manifest() {
        return past.manifest;
      },
    };
    return { ...this.#steps.acquire(), source };
  }

  /** The VM ended by itself; a step in progress notices it by itself. */
  #handleExit(): void {
    const { exit } = this.#work;
    if (!exit || !this.live || this.#steps.busy) return;
    this.#log.warn(exit, 'the micro-VM ended by itself');
    this.#steps.begin(async () => await this.#work.handleExit(exit));
  }

  /** Compacts layers in the background; the change of the disk in use runs between two steps. */
  #compactDisk(): void {
    const { live } = this;
    if (live === undefined || this.#isCompacting) return;
    this.#isCompacting = true;
    live
      .compactDisk((work) => this.#steps.runExclusive(work))
      .catch((error: unknown) => {
        if (this.live === live)
          this.#log.warn({ err: error }, 'the layers of the disk could not be compacted');
      })
      .finally(() => {
        this.#isCompacting = false;
      });
  }
}
