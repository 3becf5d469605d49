import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMarker } from '@releap/contract';
import type { Logger } from 'pino';
import type { SnapshotFacts, SnapshotFolders } from '../machine/index.ts';
import type { OrphansOfKind, ManagedKind } from '../quarantine/orphans.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import type { VmmDriver } from '../vmm/driver.ts';
import type { SnapshotAssignment, SnapshotObservation } from './assignment.ts';
import type { Sandbox } from './sandbox.ts';

const REMOVE_AGAIN_MS = 5_000;

export interface SnapshotKeeperOptions {
  folders: SnapshotFolders;
  /** Keeps snapshots that control does not name. */
  quarantine: Quarantine;
  /** Compacts the layers of a new snapshot in the background. */
  compact: (id: string) => Promise<void>;
  find: (vmId: string) => Sandbox | undefined;
  driver: Pick<VmmDriver, 'nameOf'>;
  report: (observation: SnapshotObservation) => void;
  log: Logger;
}

interface Kept {
  assignment: SnapshotAssignment;
  /** Observation of the newest generation. */
  observation?: SnapshotObservation;
  work: Promise<void>;
}

/**
 * Reconciles the snapshots of this machine. Like the reconciler of sandboxes it acts only on messages that arrived since
 * the link was established, and messages may be repeated.
 */
export class SnapshotReconciler implements ManagedKind {
  readonly kind = 'snapshot';
  readonly #options: SnapshotKeeperOptions;
  readonly #kept = new Map<string, Kept>();
  readonly #named = new Set<string>();
  #compacting: Promise<void> = Promise.resolve();
  /** Moves into the quarantine that are in progress. */
  #leaving: Promise<void> = Promise.resolve();

  constructor(options: SnapshotKeeperOptions) {
    this.#options = options;
  }

  /** A new link starts with a complete `sync`; pages of the previous one are discarded. */
  linked(): void {
    this.#named.clear();
  }

  /** Control names the snapshot, but this version cannot read its assignment: the snapshot stays as it is. */
  named(id: string): void {
    this.#named.add(id);
  }

  /** Whether control wants this host to take this snapshot. */
  isAssigned(id: string): boolean {
    return this.#kept.get(id)?.assignment.desired === 'ready';
  }

  async orphans(): Promise<OrphansOfKind> {
    for (const id of this.#kept.keys()) if (!this.#named.has(id)) this.#kept.delete(id);
    const { folders } = this.#options;
    const complete = new Set(await folders.finished());
    const ids = (await folders.list()).filter((id) => !this.#named.has(id));
    return { ids, persistent: ids.filter((id) => complete.has(id)).length, total: complete.size };
  }

  park(ids: readonly string[]): void {
    const work = this.#leaving.then(async () => {
      for (const id of ids) if (!this.#named.has(id)) await this.#park(id);
    });
    this.#leaving = work.catch((error: unknown) =>
      this.#options.log.error({ err: error }, 'snapshots that control does not name could not be moved'),
    );
  }

  async #park(id: string): Promise<void> {
    const { folders, quarantine, log } = this.#options;
    // An incomplete snapshot is removed.
    await folders.abandon(id);
    if (await quarantine.park(id))
      log.warn({ snapshot: id }, 'control does not name this snapshot; it is in quarantine');
  }

  /** Resolves when no work is in progress. */
  async idle(): Promise<void> {
    await Promise.all([this.#leaving, ...[...this.#kept.values()].map(({ work }) => work)]);
  }

  /** Applies an assignment, unless its generation is older than the current one. */
  assign(assignment: SnapshotAssignment): void {
    const id = assignment.snapshot_id;
    this.#named.add(id);
    const known = this.#kept.get(id);
    if (known !== undefined && assignment.generation < known.assignment.generation) return;
    if (known !== undefined && assignment.generation === known.assignment.generation) {
      if (known.observation !== undefined) this.#options.report(known.observation);
      return;
    }
    const kept: Kept = { assignment, work: Promise.resolve() };
    this.#kept.set(id, kept);
    kept.work = (async () => {
      await known?.work;
      // A newer assignment has arrived meanwhile.
      if (this.#kept.get(id) !== kept) return;
      kept.observation = {
        snapshot_id: id,
        generation: assignment.generation,
        ...(await this.#serve(assignment)),
      };
      this.#options.report(kept.observation);
    })();
  }

  async #serve(
    assignment: SnapshotAssignment,
  ): Promise<Omit<SnapshotObservation, 'snapshot_id' | 'generation'>> {
    const { folders, find, log } = this.#options;
    const { snapshot_id: id, vm_id, kind, parent_id } = assignment;
    try {
      await this.#leaving;
      if (await this.#options.quarantine.restore(id))
        log.warn({ snapshot: id }, 'control names this snapshot again; it is back from the quarantine');
      if (assignment.desired === 'deleted') {
        await this.#remove(id);
        return { status: 'deleted' };
      }
      const found = await folders.load(id);
      if (found !== undefined) {
        this.#compactLater(id);
        return this.#describe(id, found);
      }
      if (assignment.captured === true) throw new Error('the snapshot is no longer on this machine');
      const sandbox = find(vm_id);
      if (sandbox === undefined) throw new Error('its sandbox is not on this machine');
      const facts = await sandbox.snapshot(id, kind, parent_id);
      this.#compactLater(id);
      return this.#describe(id, facts);
    } catch (error) {
      log.warn({ err: error, snapshot: id, vm: vm_id }, 'a snapshot failed');
      return { status: 'failed', error: error instanceof Error ? error.message : String(error) };
    }
  }

  /** Compactions run one after the other. */
  #compactLater(id: string): void {
    const { compact, log } = this.#options;
    this.#compacting = this.#compacting
      .then(() => compact(id))
      .catch((error: unknown) =>
        log.warn({ err: error, snapshot: id }, 'the layers of a snapshot could not be compacted'),
      );
  }

  /** Removes a snapshot; the only place where a failed removal is retried. */
  async #remove(id: string): Promise<void> {
    for (;;) {
      try {
        return await this.#options.folders.remove(id);
      } catch (error) {
        this.#options.log.error({ err: error, snapshot: id }, 'a snapshot could not be removed');
        await sleep(REMOVE_AGAIN_MS, undefined, { ref: false });
      }
    }
  }

  #describe(id: string, facts: SnapshotFacts): Omit<SnapshotObservation, 'snapshot_id' | 'generation'> {
    const { memory } = facts;
    return {
      status: 'ready',
      no_changes: facts.noChanges,
      manifest_name: facts.manifest,
      disk_bytes: facts.diskBytes,
      ...(memory && {
        artifact_ref: id,
        fc_version: this.#options.driver.nameOf(memory.vmm),
        cpu_marker: cpuMarker({ cpu_model: memory.hostCpu, accelerator: memory.accelerator }),
        mem_bytes: memory.shape.memMib * 1024 * 1024,
      }),
    };
  }
}
