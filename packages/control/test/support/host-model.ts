/** A host as the control plane may rely on it: what it has of one sandbox, and what it says when it is told something. */
import type { Assignment, Observation } from '@releap/testing/runner-messages';

/** How what it tries ends: well; not, with nothing lost; not, with the memory lost. */
export type Outcome = 'well' | 'badly' | 'worse';

type Said = Omit<Observation, 'vm_id' | 'generation'>;

export class HostModel {
  assignment: Assignment | undefined;
  vm = false;
  disk = false;
  memory = false;
  /** Everything it ever said, oldest first. */
  readonly said: Observation[] = [];
  readonly persistent: boolean;
  /** What it is a fork of, on the same host. */
  readonly source: HostModel | undefined;

  constructor(persistent: boolean, source?: HostModel) {
    this.persistent = persistent;
    this.source = source;
  }

  /** Older generations are ignored. */
  receive(assignment: Assignment): void {
    if (assignment.generation >= (this.assignment?.generation ?? 0)) this.assignment = assignment;
  }

  /** Makes it so, or tries. */
  converge(outcome: Outcome): void {
    const { assignment } = this;
    if (assignment === undefined) return;
    if (this.#begins() && !this.#copies(outcome)) return;
    switch (assignment.desired) {
      case 'deleted':
        this.vm = this.disk = this.memory = false;
        this.#say({ status: 'deleting' }, { status: 'deleted' });
        break;
      case 'stopped':
        this.vm = this.memory = false;
        this.#say({ status: 'stopping' }, { status: 'stopped' });
        break;
      case 'paused':
        this.#pause(outcome);
        break;
      case 'running':
        if (this.vm) this.#run();
        else if (assignment.start_from === 'memory') this.#resume(outcome);
        else this.#boot(outcome);
        break;
    }
  }

  /** It has an origin, and nothing was taken of that yet. */
  #begins(): boolean {
    const { assignment } = this;
    const wanted = assignment?.desired === 'running' || assignment?.desired === 'paused';
    return wanted && assignment.spec.origin !== undefined && !this.disk;
  }

  /** Memory and disk of the source as they are now; the source loses nothing, whatever the outcome. */
  #copies(outcome: Outcome): boolean {
    const { source } = this;
    if (outcome !== 'well' || source === undefined || !(source.vm || source.memory)) {
      this.#say({ status: 'failed', error: 'nothing could be copied' });
      return false;
    }
    this.disk = this.memory = true;
    return true;
  }

  dies(): void {
    if (!this.vm) return;
    this.vm = false;
    this.#say({ status: 'failed', error: 'the VMM died' });
  }

  powersOff(): void {
    if (!this.vm) return;
    this.vm = false;
    this.#say({ status: 'stopped' });
  }

  /** The machine was restarted: no VM is left, and disks are. */
  restarts(): void {
    if (!this.vm) return;
    this.vm = false;
    this.#say({ status: 'stopped', error: 'its host was restarted' });
  }

  #boot(outcome: Outcome): void {
    this.memory = false;
    this.#say({ status: 'building' }, { status: 'booting' });
    if (outcome !== 'well')
      return this.#say({ status: this.disk ? 'stopped' : 'failed', error: 'could not be started' });
    this.disk = this.persistent;
    this.vm = true;
    this.#run();
  }

  #resume(outcome: Outcome): void {
    this.#say({ status: 'booting' });
    if (outcome === 'worse') this.memory = false;
    if (outcome !== 'well' || !this.memory)
      return this.#say({ status: 'paused', error: 'could not be resumed', memory: this.memory });
    // Consumed before the guest runs: it is never restored a second time.
    this.memory = false;
    this.vm = true;
    this.#run();
  }

  #pause(outcome: Outcome): void {
    this.#say({ status: 'pausing' });
    if (this.vm && outcome === 'badly') return this.#run('could not be paused');
    if (this.vm && outcome === 'well') this.memory = true;
    this.vm = false;
    if (this.memory) this.#say({ status: 'paused' });
    else if (this.disk) this.#say({ status: 'paused', memory: false });
    else this.#say({ status: 'failed', error: 'nothing is left of it' });
  }

  #run(error?: string): void {
    this.#say({ status: 'running', manifest_name: 'sha256:1', ...(error === undefined ? {} : { error }) });
  }

  #say(...all: Said[]): void {
    const { assignment } = this;
    if (assignment === undefined) return;
    for (const one of all)
      this.said.push({ vm_id: assignment.vm_id, generation: assignment.generation, ...one });
  }
}
