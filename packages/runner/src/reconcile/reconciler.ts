import type { Assignment, ControlMessage, Observation } from '@releap/contract';
import { Sandbox, type SandboxDeps } from './sandbox.ts';

/**
 * All sandboxes of this machine. It acts only on what control has said since the link was last made: a runner
 * that was cut off keeps what it has and asks first.
 */
export class Reconciler {
  readonly #deps: SandboxDeps;
  readonly #sandboxes = new Map<string, Sandbox>();
  /** Named by the parts of a `sync` that have come so far. */
  readonly #named = new Set<string>();
  /** Of which there is a record that cannot be read: what is kept of them stays until control has said what they are. */
  readonly #unread = new Set<string>();
  /** Nothing may begin any more: the service goes down, or another runner takes over. */
  #ends = false;

  constructor(deps: Omit<SandboxDeps, 'find'>) {
    this.#deps = { ...deps, find: (vmId) => this.#sandboxes.get(vmId) };
  }

  /** Reads the records of a previous life of the runner. @returns the ids that they name */
  async load(): Promise<Set<string>> {
    const { records, unreadable } = await this.#deps.records.load(this.#deps.log);
    for (const record of records) {
      const { assignment } = record;
      this.#sandboxes.set(assignment.vm_id, new Sandbox(this.#deps, assignment, record));
    }
    for (const vmId of unreadable) this.#unread.add(vmId);
    return new Set([...this.#sandboxes.keys(), ...this.#unread]);
  }

  /** Finds the VMs of those records again, and cleans up after those that are gone. */
  async recover(): Promise<void> {
    await Promise.all([
      ...[...this.#sandboxes.values()].map((sandbox) => sandbox.adopt()),
      ...[...this.#unread].map((vmId) =>
        this.#deps.host
          .end(vmId)
          .catch((error: unknown) =>
            this.#deps.log.error({ err: error, vm: vmId }, 'what is left of its VM could not be removed'),
          ),
      ),
    ]);
  }

  get(vmId: string): Sandbox | undefined {
    return this.#sandboxes.get(vmId);
  }

  /** Whether this machine has no sandbox, ended ones that control has not heard of included. */
  get isEmpty(): boolean {
    return this.#sandboxes.size === 0 && this.#unread.size === 0;
  }

  /** Those whose micro-VM runs now. */
  running(): string[] {
    return [...this.#sandboxes].flatMap(([vmId, sandbox]) => (sandbox.live === undefined ? [] : [vmId]));
  }

  /** The host's clock was set, or stood: theirs follow it. */
  setClocks(): void {
    for (const sandbox of this.#sandboxes.values()) sandbox.setClock();
  }

  /** A new link begins with a whole new `sync`; parts of the last one are void. */
  linked(): void {
    this.#named.clear();
  }

  receive(message: ControlMessage): void {
    if (this.#ends) return;
    if (message.type === 'assign') this.#assign(message.assignment);
    if (message.type === 'sync') this.#sync(message.assignments, message.more === true);
  }

  /**
   * A sandbox whose end control has stored is forgotten: nothing of it is left here but its logs. One that has a disk
   * has ended only when it is deleted.
   */
  async stored(observations: Observation[]): Promise<void> {
    for (const observation of observations) {
      const { vm_id } = observation;
      // One that control already wants something else of goes on, and writes its record again.
      if (this.#sandboxes.get(vm_id)?.isOver(observation) !== true) continue;
      this.#sandboxes.delete(vm_id);
      await this.#deps.records.remove(vm_id);
    }
  }

  /**
   * Ends every VM, for a service that goes down. What is persistent is stopped, and can be started again later. One
   * that resists keeps no other. What control wants from now on is left to the next runner.
   */
  async drain(reason: string): Promise<void> {
    this.#ends = true;
    await Promise.all(
      [...this.#sandboxes.values()].map((sandbox) =>
        sandbox
          .shutDown(reason)
          .catch((error: unknown) =>
            this.#deps.log.error({ err: error, vm: sandbox.vmId }, 'a sandbox could not be ended'),
          ),
      ),
    );
  }

  /** Lets go of the VMs without ending them. */
  async detach(): Promise<void> {
    this.#ends = true;
    await Promise.all([...this.#sandboxes.values()].map((sandbox) => sandbox.detach()));
  }

  #assign(assignment: Assignment): void {
    const known = this.#sandboxes.get(assignment.vm_id);
    if (known) {
      known.want(assignment);
      return;
    }
    const sandbox = new Sandbox(this.#deps, assignment);
    this.#sandboxes.set(assignment.vm_id, sandbox);
    this.#unread.delete(assignment.vm_id);
    sandbox.converge();
  }

  #sync(assignments: Assignment[], more: boolean): void {
    for (const assignment of assignments) {
      this.#named.add(assignment.vm_id);
      this.#assign(assignment);
    }
    if (more) return;
    for (const [vmId, sandbox] of this.#sandboxes) {
      if (!this.#named.has(vmId)) this.#removeOrphan(vmId, () => sandbox.remove());
    }
    for (const vmId of this.#unread) this.#removeOrphan(vmId, () => this.#deps.host.destroy(vmId));
    this.#named.clear();
  }

  #removeOrphan(vmId: string, remove: () => Promise<void>): void {
    this.#deps.log.warn({ vm: vmId }, 'control does not know this sandbox any more; removing it');
    void remove()
      .then(async () => {
        this.#sandboxes.delete(vmId);
        this.#unread.delete(vmId);
        await this.#deps.records.remove(vmId);
      })
      .catch((error: unknown) =>
        this.#deps.log.error({ err: error, vm: vmId }, 'could not remove an orphan'),
      );
  }
}
