import { setTimeout as sleep } from 'node:timers/promises';
import type { OrphansOfKind, ManagedKind } from '../quarantine/orphans.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import type { Assignment, Observation } from './assignment.ts';
import { Sandbox, type SandboxDeps } from './sandbox.ts';
import { bootId } from '../vmm/process-identity.ts';
import { parseRecord } from './sandbox-record.ts';

/** Time until a failed move into or out of the quarantine is retried. */
const MOVE_AGAIN_MS = 5_000;

export interface ReconcilerOptions extends Omit<SandboxDeps, 'find'> {
  /** Keeps persistent data of sandboxes that control does not name. */
  quarantine: Quarantine;
}

/**
 * Reconciles all sandboxes of this machine. It acts only on messages that arrived since the link was established: a runner
 * that was disconnected keeps its sandboxes and waits for control.
 */
export class Reconciler implements ManagedKind {
  readonly kind = 'sandbox';
  readonly #deps: SandboxDeps;
  readonly #quarantine: Quarantine;
  readonly #sandboxes = new Map<string, Sandbox>();
  /** Ids that control has named since the link was established. */
  readonly #named = new Set<string>();
  /** Ids that are being moved into or out of the quarantine, with the latest assignment since. */
  readonly #moving = new Map<string, { wanted: Assignment | undefined; done: Promise<void> }>();
  /** Ids whose record cannot be read: their data stays until control has sent their assignment. */
  readonly #unread = new Set<string>();
  /** Ids of the previous runner's sandboxes that are not adopted yet; undefined until they are read. */
  #recovering: Set<string> | undefined;
  /** No new steps: the service is stopping, or another runner takes over. */
  #ends = false;

  constructor({ quarantine, ...deps }: ReconcilerOptions) {
    this.#quarantine = quarantine;
    this.#deps = { ...deps, find: (vmId) => this.#sandboxes.get(vmId) };
  }

  /** Reads the records of the previous runner. @returns the ids that they name */
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
    this.#recovering = new Set(this.#sandboxes.keys());
    return new Set([...this.#sandboxes.keys(), ...this.#unread]);
  }

  /** Adopts the VMs of those records, and cleans up after those that have ended. */
  async recover(): Promise<void> {
    await Promise.all([
      ...[...this.#sandboxes].map(async ([vmId, sandbox]) => {
        await sandbox.adopt();
        this.#recovering?.delete(vmId);
      }),
      ...[...this.#unread].map((vmId) =>
        this.#deps.host
          .end(vmId)
          .catch((error: unknown) =>
            this.#deps.log.error({ err: error, vm: vmId }, 'the resources of its VM could not be removed'),
          ),
      ),
    ]);
  }

  /** Whether it is known what has become of a sandbox of the previous runner, if it is one. */
  isKnown(vmId: string): boolean {
    return this.#recovering?.has(vmId) === false;
  }

  get(vmId: string): Sandbox | undefined {
    return this.#sandboxes.get(vmId);
  }

  /** Whether this machine has no sandbox, including ended ones that control does not know of yet. */
  get isEmpty(): boolean {
    return this.#sandboxes.size === 0 && this.#unread.size === 0 && this.#moving.size === 0;
  }

  /** Sandboxes whose micro-VM runs. */
  running(): string[] {
    return [...this.#sandboxes].flatMap(([vmId, sandbox]) => (sandbox.live === undefined ? [] : [vmId]));
  }

  /** Sandboxes whose micro-VM runs, by state: `frozen` because it is idle, `silent` if its agent does not answer. */
  get counts(): { running: number; frozen: number; silent: number } {
    const live = [...this.#sandboxes.values()].flatMap((sandbox) => sandbox.live ?? []);
    const frozen = live.filter(({ isFrozen }) => isFrozen).length;
    const silent = live.filter(({ isFrozen, isSilent }) => isSilent && !isFrozen).length;
    return { running: live.length - frozen - silent, frozen, silent };
  }

  /** The host's file system is nearly full: pauses all guests until there is space. */
  pauseForSpace(isShort: () => boolean): void {
    for (const { live, vmId } of this.#sandboxes.values()) {
      live
        ?.pauseForSpace(isShort)
        .catch((error: unknown) =>
          this.#deps.log.warn({ err: error, vm: vmId }, 'a guest could not be paused'),
        );
    }
  }

  /** The host's clock was set, or the host was suspended: sets the guests' clocks. */
  setClocks(): void {
    for (const sandbox of this.#sandboxes.values()) sandbox.setClock();
  }

  /** A new link starts with a complete `sync`; pages of the previous one are discarded. */
  linked(): void {
    this.#named.clear();
  }

  /** Control names the sandbox, but this version cannot read its assignment: the sandbox stays as it is. */
  named(vmId: string): void {
    this.#named.add(vmId);
  }

  /** Applies an assignment, unless its generation is older than the current one. */
  assign(assignment: Assignment): void {
    if (!this.#ends) this.#assign(assignment);
  }

  /**
   * Control has stored the end of the sandbox: removes its record; only its logs remain. A sandbox with a disk has ended
   * only when it is deleted.
   */
  async stored(observations: Observation[]): Promise<void> {
    for (const observation of observations) {
      const { vm_id } = observation;
      // A sandbox with a newer assignment continues, and writes its record again.
      if (this.#sandboxes.get(vm_id)?.isOver(observation) !== true) continue;
      this.#sandboxes.delete(vm_id);
      await this.#deps.records.remove(vm_id);
    }
  }

  /**
   * Ends all VMs because the service is stopping. Persistent sandboxes are stopped and can be started later. One that
   * fails does not delay the others. Later assignments are left to the next runner.
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

  orphans(): Promise<OrphansOfKind> {
    const isHere = (vmId: string): boolean => this.#unread.has(vmId) || !this.#moving.has(vmId);
    const held = [...this.#sandboxes].map(([vmId, sandbox]) => ({
      vmId,
      persistent: sandbox.hasPersistentBytes,
    }));
    // If the record cannot be read, any data may be persistent.
    held.push(...[...this.#unread].map((vmId) => ({ vmId, persistent: true })));
    const absent = held.filter(({ vmId }) => !this.#named.has(vmId) && isHere(vmId));
    const persistent = (list: typeof held): number => list.filter((one) => one.persistent).length;
    return Promise.resolve({
      ids: absent.map(({ vmId }) => vmId),
      persistent: persistent(absent),
      total: persistent(held),
    });
  }

  park(ids: readonly string[]): void {
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

  /** Control names the sandbox again: moves its data back from the quarantine. */
  #bringBack(assignment: Assignment): void {
    const { vm_id: vmId } = assignment;
    this.#move(
      vmId,
      async () => {
        const text = await this.#quarantine.readRecord(vmId);
        const record = text === undefined ? undefined : parseRecord(text);
        // Before its data is moved: data must never exist without a record.
        await this.#deps.records.save(
          record ?? {
            assignment,
            observation: { vm_id: vmId, generation: assignment.generation, status: 'stopped' },
            bootId: bootId(),
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

  /** Retries until it succeeds, and then applies the latest assignment. */
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

  /** A runner that ended during a move has left a record whose data is in the quarantine. */
  async #wasParked(vmId: string): Promise<boolean> {
    if (!this.#quarantine.has(vmId)) return false;
    const { disk, memory } = await this.#deps.host.localState(vmId);
    if (disk || memory) return false;
    await this.#deps.records.remove(vmId);
    return true;
  }

  /** Resolves when no move into or out of the quarantine is in progress. */
  async moved(): Promise<void> {
    await Promise.all([...this.#moving.values()].map(({ done }) => done));
  }
}
