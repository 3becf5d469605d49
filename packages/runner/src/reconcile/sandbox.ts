import type { Assignment, Observation, ObservedStatus } from '@releap/contract';
import type { Logger } from 'pino';
import { racePoint } from '../race-point.ts';
import type { LiveSandbox, SandboxHost } from './sandbox-host.ts';
import type { RecordStore } from './sandbox-record.ts';

/** From the first step to `running`, pulls not included. Twice what a cold boot takes under emulation. */
const BOOT_DEADLINE_MS = 90_000;
/** A pull or build of the root image; the registry client has deadlines of its own below this. */
const IMAGE_DEADLINE_MS = 30 * 60_000;
/** A step that broke (a full disk, a tool that failed) is done again after this long, then twice as long. */
const RETRY_MS = { first: 1_000, most: 60_000 };

export interface SandboxDeps {
  host: SandboxHost;
  records: RecordStore;
  report: (observation: Observation) => void;
  log: Logger;
}

/**
 * One sandbox on this machine: makes what is agree with what must be, one step after the other. Steps never
 * overlap; a newer assignment interrupts the step that runs. Every step may be repeated after a crash.
 */
export class Sandbox {
  readonly vmId: string;
  readonly #deps: SandboxDeps;
  readonly #log: Logger;
  #assignment: Assignment;
  #observation: Observation;
  #live: LiveSandbox | undefined;
  /** Why the VMM ended by itself, from when it did until all of it is removed. */
  #exit: string | undefined;
  #step: { controller: AbortController; done: Promise<void> } | undefined;
  #retry: NodeJS.Timeout | undefined;
  #retryMs = RETRY_MS.first;

  constructor(deps: SandboxDeps, assignment: Assignment, observation?: Observation) {
    this.vmId = assignment.vm_id;
    this.#deps = deps;
    this.#log = deps.log.child({ vm: assignment.vm_id });
    this.#assignment = assignment;
    this.#observation = observation ?? {
      vm_id: assignment.vm_id,
      generation: assignment.generation,
      status: 'booting',
    };
  }

  get live(): LiveSandbox | undefined {
    return this.#live;
  }

  get observation(): Observation {
    return this.#observation;
  }

  get isRunning(): boolean {
    return this.#observation.status === 'running' && this.#live !== undefined;
  }

  /** Whether this end is the last word: nothing newer is wanted, and no step is on its way to it. */
  isOver({ generation, status }: Observation): boolean {
    if (status !== 'deleted' && status !== 'failed') return false;
    const now = this.#observation;
    return (
      now.status === status &&
      now.generation === generation &&
      this.#assignment.generation === generation &&
      this.#step === undefined
    );
  }

  /** Takes over what control wants. An older generation, or the same again, changes nothing. */
  want(assignment: Assignment): void {
    if (assignment.generation < this.#assignment.generation) return;
    const isNew = assignment.generation > this.#assignment.generation;
    this.#assignment = assignment;
    if (!isNew && this.#step) return;
    if (!isNew && this.#isSettled()) {
      this.#deps.report(this.#observation);
      return;
    }
    this.converge();
  }

  /** After a restart of the runner: find the VMM again, or clean up after it. */
  async adopt(): Promise<void> {
    if (this.#observation.status === 'running') {
      this.#live = await this.#deps.host
        .adopt(this.#assignment, this.#observation, this.#events())
        .catch((error: unknown) => {
          this.#log.warn({ err: error }, 'the micro-VM could not be adopted');
          return undefined;
        });
      if (this.#live) {
        this.#log.info('adopted a running micro-VM');
        this.#endIfExited();
        return;
      }
      this.#beginEnd('the micro-VM ended while the runner was not running');
    } else if (!this.#isSettled()) {
      this.#begin(() => this.#end());
    }
    await this.idle();
  }

  /** Starts the step that leads to what is wanted; the one that runs is interrupted first. */
  converge(): void {
    this.#begin((signal) => this.#converge(signal));
  }

  /** A step that breaks is begun again later, so that nothing stays half done. */
  #begin(work: (signal: AbortSignal) => Promise<void>): void {
    clearTimeout(this.#retry);
    const previous = this.#step;
    previous?.controller.abort(new Error('superseded by a newer assignment'));
    const controller = new AbortController();
    const done = (async () => {
      await previous?.done;
      try {
        await work(controller.signal);
        this.#retryMs = RETRY_MS.first;
      } catch (error) {
        this.#log.error({ err: error }, 'a step of the sandbox broke');
        if (!controller.signal.aborted) this.#beginLater(work);
      } finally {
        if (this.#step?.controller === controller) {
          this.#step = undefined;
          this.#endIfExited();
        }
      }
    })();
    this.#step = { controller, done };
  }

  #beginLater(work: (signal: AbortSignal) => Promise<void>): void {
    this.#retry = setTimeout(() => this.#begin(work), this.#retryMs).unref();
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS.most);
  }

  /** Resolves when no step runs. */
  async idle(): Promise<void> {
    while (this.#step) await this.#step.done;
  }

  /** The machine is going down for good: end the VM and say why. */
  async shutDown(reason: string): Promise<void> {
    this.#step?.controller.abort(new Error(reason));
    await this.idle();
    clearTimeout(this.#retry);
    if (this.#isSettled() && this.#observation.status !== 'running') return;
    await this.#end();
    await this.#observe('failed', { error: reason });
  }

  /** Lets go of the VM without ending it: a later runner takes it over. */
  async detach(): Promise<void> {
    this.#step?.controller.abort(new Error('the runner stops'));
    await this.idle();
    clearTimeout(this.#retry);
    await this.#live?.close();
    this.#live = undefined;
  }

  async #converge(signal: AbortSignal): Promise<void> {
    switch (this.#assignment.desired) {
      case 'running':
        return this.#run(signal);
      case 'deleted':
        return this.#delete();
      case 'stopped':
      case 'paused':
        return this.#observe('failed', {
          error: `this runner cannot make a sandbox ${this.#assignment.desired}`,
        });
    }
  }

  async #run(signal: AbortSignal): Promise<void> {
    if (this.#live)
      return this.#observe('running', { ...this.#observation, generation: this.#assignment.generation });
    const { host } = this.#deps;
    const { root } = this.#assignment.spec;
    try {
      await this.#observe((await host.hasImage(root)) ? 'booting' : 'building');
      racePoint('create:recorded');
      const imageSignal = AbortSignal.any([signal, AbortSignal.timeout(IMAGE_DEADLINE_MS)]);
      using image = await host.acquireImage(root, imageSignal);
      if (this.#observation.status === 'building') await this.#observe('booting');
      racePoint('create:image');
      const bootSignal = AbortSignal.any([signal, AbortSignal.timeout(BOOT_DEADLINE_MS)]);
      this.#live = await host.boot(this.#assignment, image, this.#events(), bootSignal);
      racePoint('create:booted');
      signal.throwIfAborted();
      await this.#observe('running', { ...this.#live.addresses, manifest_name: image.digest });
      racePoint('create:running');
    } catch (error) {
      await this.#end();
      if (signal.aborted) return;
      const message = error instanceof Error ? error.message : String(error);
      this.#log.warn({ err: error }, 'the sandbox could not be started');
      await this.#observe('failed', { error: message });
    }
  }

  async #delete(): Promise<void> {
    await this.#observe('deleting');
    racePoint('delete:recorded');
    await this.#end();
    racePoint('delete:destroyed');
    await this.#observe('deleted');
  }

  async #end(): Promise<void> {
    const live = this.#live;
    this.#live = undefined;
    await live?.close();
    await this.#deps.host.destroy(this.vmId);
    this.#exit = undefined;
  }

  #events(): { onExit: (reason: string) => void } {
    this.#exit = undefined;
    return {
      onExit: (reason) => {
        this.#exit = reason;
        this.#endIfExited();
      },
    };
  }

  /** Asked at every moment at which a VMM may be found to have ended, also in the middle of a step. */
  #endIfExited(): void {
    const reason = this.#exit;
    if (reason === undefined || !this.#live || this.#step) return;
    this.#log.warn({ reason }, 'the micro-VM ended by itself');
    this.#beginEnd(reason);
  }

  #beginEnd(error: string): void {
    this.#begin(async () => {
      await this.#end();
      await this.#observe('failed', { error });
    });
  }

  #isSettled(): boolean {
    const { status, generation } = this.#observation;
    if (generation !== this.#assignment.generation) return false;
    return status === 'failed' || status === 'deleted' || (status === 'running' && this.#live !== undefined);
  }

  /**
   * On disk first, then said: what control hears, a restarted runner still knows. Only an end is said even if it
   * cannot be written (the disk is full): a runner that reads the record of before finds nothing and says the same.
   */
  async #observe(status: ObservedStatus, more: Partial<Observation> = {}): Promise<void> {
    this.#observation = {
      vm_id: this.vmId,
      generation: this.#assignment.generation,
      status,
      ...more,
    };
    const { records, report } = this.#deps;
    try {
      await records.save({ assignment: this.#assignment, observation: this.#observation });
    } catch (error) {
      if (status !== 'failed' && status !== 'deleting' && status !== 'deleted') throw error;
      this.#log.error({ err: error, status }, 'the record of the sandbox could not be written');
    }
    report(this.#observation);
  }
}
