import { setTimeout as sleep } from 'node:timers/promises';
import type { Absent, HeldKind } from '../quarantine/absences.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import type { Assignment, Observation } from './assignment.ts';
import { Sandbox, type SandboxDeps } from './sandbox.ts';
import { parseRecord } from './sandbox-record.ts';

/** A move into the quarantine, or out of it, that has failed is tried again after this long. */
const MOVE_AGAIN_MS = 5_000;

export interface ReconcilerOptions extends Omit<SandboxDeps, 'find'> {
  /** Where the persistent bytes of sandboxes go that control does not name. */
  quarantine: Quarantine;
}

/**
 * All sandboxes of this machine. It acts only on what control has said since the link was last made: a runner
 * that was cut off keeps what it has and asks first.
 */
export class Reconciler implements HeldKind {
  readonly kind = 'sandbox';
  readonly #deps: SandboxDeps;
  readonly #quarantine: Quarantine;
  readonly #sandboxes = new Map<string, Sandbox>();
  /** Named since the link was made. */
  readonly #named = new Set<string>();
  /** On their way into the quarantine or out of it, with what control has said of them meanwhile. */
  readonly #moving = new Map<string, { wanted: Assignment | undefined; done: Promise<void> }>();
  /** Of which there is a record that cannot be read: what is kept of them stays until control has said what they are. */
  readonly #unread = new Set<string>();
  /** Nothing may begin any more: the service goes down, or another runner takes over. */
  #ends = false;

  constructor({ quarantine, ...deps }: ReconcilerOptions) {
    this.#quarantine = quarantine;
    this.#deps = { ...deps, find: (vmId) => this.#sandboxes.get(vmId) };
  }

  /** Reads the records of a previous life of the runner. @returns the ids that they name */
  async load(): Promise<Set<string>> {
    const { records, unreadable } = await this.#deps.records.load(this.#deps.log);
    for (const record of records) {
      const { assignment } = record;
      if (await this.#wasParked(assignment.vm_id)) continue;
      this.#sandboxes.set(assignment.vm_id, new Sandbox(this.#deps, assignment, record));
    }
    for (const vmId of unreadable) {
      if (!(await this.#wasParked(vmId))) this.#unread.add(vmId);
    }
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
    return this.#sandboxes.size === 0 && this.#unread.size === 0 && this.#moving.size === 0;
  }

  /** Those whose micro-VM runs now. */
  running(): string[] {
    return [...this.#sandboxes].flatMap(([vmId, sandbox]) => (sandbox.live === undefined ? [] : [vmId]));
  }

  /** The host's disk is short of space: no guest may write until there is some again. */
  pauseForSpace(isShort: () => boolean): void {
    for (const { live, vmId } of this.#sandboxes.values()) {
      live
        ?.pauseForSpace(isShort)
        .catch((error: unknown) =>
          this.#deps.log.warn({ err: error, vm: vmId }, 'a guest could not be paused'),
        );
    }
  }

  /** The host's clock was set, or the host was suspended: the guests' clocks follow it. */
  setClocks(): void {
    for (const sandbox of this.#sandboxes.values()) sandbox.setClock();
  }

  /** A new link begins with a whole new `sync`; parts of the last one are void. */
  linked(): void {
    this.#named.clear();
  }

  /** Control names the sandbox, but what it wants of it cannot be read here: it stays as it is. */
  named(vmId: string): void {
    this.#named.add(vmId);
  }

  /** Makes the sandbox what control wants, unless that is older than what it wanted before. */
  assign(assignment: Assignment): void {
    if (!this.#ends) this.#assign(assignment);
  }

  /**
   * A sandbox whose end control has stored is forgotten: nothing of it is left here but its logs. One that has a disk
   * has ended only when it is deleted.
   */
  async stored(observations: Observation[]): Promise<void> {
    for (const observation of observations) {
      const { vm_id } = observation;
      // One that control already wants something else of continues, and writes its record again.
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
    await this.moved();
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

  /** Detaches from the VMs without ending them. */
  async detach(): Promise<void> {
    this.#ends = true;
    await this.moved();
    await Promise.all([...this.#sandboxes.values()].map((sandbox) => sandbox.detach()));
  }

  #assign(assignment: Assignment): void {
    const { vm_id: vmId } = assignment;
    this.#named.add(vmId);
    const moving = this.#moving.get(vmId);
    if (moving) {
      moving.wanted = assignment;
      return;
    }
    const known = this.#sandboxes.get(vmId);
    if (known) {
      known.want(assignment);
      return;
    }
    if (this.#quarantine.has(vmId)) return this.#bringBack(assignment);
    const sandbox = new Sandbox(this.#deps, assignment);
    this.#sandboxes.set(vmId, sandbox);
    this.#unread.delete(vmId);
    sandbox.converge();
  }

  absent(): Promise<Absent> {
    const isHere = (vmId: string): boolean => this.#unread.has(vmId) || !this.#moving.has(vmId);
    const held = [...this.#sandboxes].map(([vmId, sandbox]) => ({
      vmId,
      persistent: sandbox.hasPersistentBytes,
    }));
    // Of a record that cannot be read, everything may be kept.
    held.push(...[...this.#unread].map((vmId) => ({ vmId, persistent: true })));
    const absent = held.filter(({ vmId }) => !this.#named.has(vmId) && isHere(vmId));
    const persistent = (list: typeof held): number => list.filter((one) => one.persistent).length;
    return Promise.resolve({
      ids: absent.map(({ vmId }) => vmId),
      persistent: persistent(absent),
      total: persistent(held),
    });
  }

  setAside(ids: readonly string[]): void {
    for (const vmId of ids) {
      if (this.#moving.has(vmId)) continue;
      const sandbox = this.#sandboxes.get(vmId);
      this.#move(vmId, async () => {
        if (sandbox === undefined) await this.#deps.host.end(vmId);
        else await sandbox.leave();
        const parked = await this.#quarantine.park(vmId, this.#deps.records.path(vmId));
        this.#deps.log.warn(
          { vm: vmId },
          parked
            ? 'control does not name this sandbox; its disk and memory are in quarantine'
            : 'control does not name this sandbox; it is removed',
        );
        this.#sandboxes.delete(vmId);
        this.#unread.delete(vmId);
        await this.#deps.records.remove(vmId);
      });
    }
  }

  /** Control names it again: all that was kept of it goes back to its place. */
  #bringBack(assignment: Assignment): void {
    const { vm_id: vmId } = assignment;
    this.#move(
      vmId,
      async () => {
        const text = await this.#quarantine.readRecord(vmId);
        const record = text === undefined ? undefined : parseRecord(text);
        // Before it has its bytes: they must never lie there without a record.
        await this.#deps.records.save(
          record ?? {
            assignment,
            observation: { vm_id: vmId, generation: assignment.generation, status: 'stopped' },
          },
        );
        await this.#quarantine.restore(vmId);
        this.#deps.log.warn({ vm: vmId }, 'control names this sandbox again; it is back from the quarantine');
        const sandbox = new Sandbox(this.#deps, record?.assignment ?? assignment, record);
        if (record !== undefined) await sandbox.adopt();
        this.#sandboxes.set(vmId, sandbox);
      },
      assignment,
    );
  }

  /** Tries until it is done, and then does what control wants by then. */
  #move(vmId: string, work: () => Promise<void>, wanted?: Assignment): void {
    const move = { wanted, done: Promise.resolve() };
    this.#moving.set(vmId, move);
    move.done = (async () => {
      for (;;) {
        try {
          await work();
          break;
        } catch (error) {
          this.#deps.log.error({ err: error, vm: vmId }, 'a sandbox could not be moved');
          if (this.#ends || move.wanted !== undefined) break;
          await sleep(MOVE_AGAIN_MS, undefined, { ref: false });
          if (this.#ends) break;
        }
      }
      this.#moving.delete(vmId);
      if (move.wanted === undefined || this.#ends) return;
      const sandbox = this.#sandboxes.get(vmId);
      if (sandbox !== undefined) return sandbox.want(move.wanted);
      if (this.#quarantine.has(vmId) && move.wanted === wanted) return this.#reportStuck(move.wanted);
      this.#assign(move.wanted);
    })();
  }

  #reportStuck({ vm_id, generation }: Assignment): void {
    const error = 'it could not be brought back from the quarantine; the log of its host says why';
    this.#deps.report({ vm_id, generation, status: 'stopped', error });
  }

  /** A runner that ended in the middle of a move has left a record, but what it is about lies in the quarantine. */
  async #wasParked(vmId: string): Promise<boolean> {
    if (!this.#quarantine.has(vmId)) return false;
    const { disk, memory } = await this.#deps.host.localState(vmId);
    if (disk || memory) return false;
    await this.#deps.records.remove(vmId);
    return true;
  }

  /** Resolves when nothing is on its way into the quarantine or out of it. */
  async moved(): Promise<void> {
    await Promise.all([...this.#moving.values()].map(({ done }) => done));
  }
}
