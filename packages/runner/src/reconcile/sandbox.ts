import type { Logger } from 'pino';
import type { Assignment, Observation } from './assignment.ts';
import type { SnapshotFacts } from '../machine/index.ts';
import type { LiveSandbox, SandboxHost } from './sandbox-host.ts';
import type { RecordStore, SandboxRecord } from './sandbox-record.ts';
import { SandboxState } from './sandbox-state.ts';
import { SandboxWork } from './sandbox-work.ts';
import type { ForkTurn } from './sandbox-work.ts';
import { Steps } from './steps.ts';

export interface SandboxDeps {
  host: SandboxHost;
  /** Another sandbox of this machine. */
  find: (vmId: string) => Sandbox | undefined;
  records: RecordStore;
  report: (observation: Observation) => void;
  log: Logger;
}

/**
 * One sandbox on this machine: makes what is agree with what must be, one step after the other. Steps never
 * overlap; a newer assignment interrupts the step that runs. Every step may be repeated after a crash.
 *
 * What cannot be had is answered with what is instead (docs/runner-protocol.md): a sandbox that could not be paused runs,
 * one that could not be resumed or started is paused or stopped, as long as nothing of it is lost.
 */
export class Sandbox {
  readonly vmId: string;
  readonly #deps: SandboxDeps;
  readonly #log: Logger;
  readonly #state: SandboxState;
  readonly #steps: Steps;
  readonly #work: SandboxWork;
  /** Aborted once it is to be deleted, which is for good. */
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
        log: this.#log,
        deletion: this.#deletion.signal,
        onExit: () => this.#handleExit(),
        onUnblocked: () => this.setClock(),
      },
      record !== undefined,
    );
    this.#steps = new Steps(this.#log, () => {
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
   * Whether this end is the last word: nothing newer is wanted, and no step is on its way to it. One that has a disk
   * has ended only when it is deleted.
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

  /** Takes over what control wants. An older generation, or the same again, changes nothing. */
  want(assignment: Assignment): void {
    if (assignment.generation < this.#state.assignment.generation) return;
    const isNew = assignment.generation > this.#state.assignment.generation;
    this.#state.assignment = assignment;
    if (assignment.desired === 'deleted') this.#deletion.abort(new Error('the sandbox is to be deleted'));
    if (!isNew && this.#steps.busy) return;
    if (!isNew && this.#state.isSettled(this.live !== undefined)) {
      this.#state.repeat();
      return;
    }
    this.converge();
  }

  /** After a restart of the runner: find the VMM again, or clean up after it. */
  async adopt(): Promise<void> {
    this.#steps.begin(async () => await this.#work.recover());
    await this.idle();
  }

  /** Starts the step that leads to what is wanted; the one that runs is interrupted first. */
  converge(): void {
    // Before anything else is asked of the source: a fork is of what the source is now.
    let first = this.#turnAtSource();
    this.#steps.begin(async (signal) => {
      const turn = first ?? this.#turnAtSource();
      first = undefined;
      try {
        this.#state.served = this.#state.assignment;
        await this.#work.converge(signal, turn);
      } finally {
        turn?.end();
      }
    });
  }

  /** Resolves when no step runs. */
  async idle(): Promise<void> {
    await this.#steps.idle();
  }

  /** The service is going down: end the VM and say why. What is persistent can be started again. */
  async shutDown(reason: string): Promise<void> {
    await this.#steps.interrupt(reason);
    if (this.#state.isSettled(this.live !== undefined) && this.#state.observation.status !== 'running')
      return;
    this.#steps.begin(async () => await this.#work.drain(reason));
    await this.idle();
  }

  /** Whether bytes may lie here that outlive its VM. */
  get hasPersistentBytes(): boolean {
    return this.isPersistent && this.#state.observation.status !== 'deleted';
  }

  /**
   * Control does not name it any more: its VM ends, and of a persistent one only what outlives that stays.
   * @throws when something of it could not be removed; to be called again then
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

  /** Detaches from the VM without ending it: a later runner takes it over. */
  async detach(): Promise<void> {
    await this.#steps.interrupt('the runner stops');
    await this.#work.release();
  }

  /** Takes it, as it runs, for later. Its steps wait. @throws when it does not run */
  async snapshot(id: string, kind: 'disk' | 'full', parentId: string | undefined): Promise<SnapshotFacts> {
    return await this.#steps.runExclusive(async () => {
      const { manifest } = this.#state.past;
      if (!this.live || manifest === undefined) {
        throw new Error(`the sandbox is ${this.#state.observation.status}, and must be running`);
      }
      return await this.live.snapshot(id, kind, manifest, parentId);
    });
  }

  /** Its guest's clock may not be that of the host any more. Between two steps: what one has frozen must stay so. */
  setClock(): void {
    if (this.live === undefined) return;
    this.#steps
      .runExclusive(async (signal) => await this.live?.setClock(signal))
      .catch((error: unknown) => this.#log.warn({ err: error }, 'the clock of a guest could not be set'));
  }

  /** The order of things at the sandbox that this is to be a fork of, unless it is one already. */
  #turnAtSource(): ForkTurn | undefined {
    const { desired, spec } = this.#state.assignment;
    if (desired === 'deleted' || spec.origin?.type !== 'fork' || !spec.persistent) return undefined;
    if (this.live !== undefined || this.#state.past.manifest !== undefined) return undefined;
    const source = this.#deps.find(spec.origin.vm_id);
    return source === undefined || source === this ? undefined : source.#takeTurn();
  }

  #takeTurn(): ForkTurn {
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
    return { ...this.#steps.takeTurn(), source };
  }

  /** A VM that ended by itself; while a step runs that is the step's to find out. */
  #handleExit(): void {
    const { exit } = this.#work;
    if (!exit || !this.live || this.#steps.busy) return;
    this.#log.warn(exit, 'the micro-VM ended by itself');
    this.#steps.begin(async () => await this.#work.handleExit(exit));
  }

  /** In the background; what it does to the disk in use comes between two steps. */
  #compactDisk(): void {
    const { live } = this;
    if (live === undefined || this.#isCompacting) return;
    this.#isCompacting = true;
    live
      .compactDisk((work) => this.#steps.runExclusive(work))
      .catch((error: unknown) => {
        if (this.live === live) this.#log.warn({ err: error }, 'the disk stays many layers');
      })
      .finally(() => {
        this.#isCompacting = false;
      });
  }
}
