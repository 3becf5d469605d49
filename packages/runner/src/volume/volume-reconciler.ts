import { setTimeout as sleep } from 'node:timers/promises';
import type { VolumeAssignment, VolumeReport } from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { KindHandler } from '../link/kind-handler.ts';
import type { OrphansOfKind, ManagedKind } from '../quarantine/orphans.ts';
import type { VolumeCopies } from './volume-copies.ts';

const REMOVE_AGAIN_MS = 2_000;

export interface VolumeReconcilerOptions {
  copies: VolumeCopies;
  report: (report: VolumeReport) => void;
  log: Logger;
}

interface Known {
  assignment: VolumeAssignment;
  /** The last report, as JSON: only changes are reported. */
  reported?: string;
}

/** The copies of volumes of this host as a kind of the link. */
export class VolumeReconciler implements KindHandler<'volume'>, ManagedKind {
  readonly kind = 'volume';
  readonly #options: VolumeReconcilerOptions;
  readonly #known = new Map<string, Known>();
  readonly #named = new Set<string>();
  /** Moves into and out of the quarantine, and removals: those of one volume run one after the other. */
  readonly #moving = new Map<string, Promise<void>>();
  readonly #closing = new AbortController();

  constructor(options: VolumeReconcilerOptions) {
    this.#options = options;
    options.copies.listen((volumeId) => this.#report(volumeId));
  }

  linked(): void {
    this.#named.clear();
  }

  named(id: string): void {
    this.#named.add(id);
  }

  assign(assignment: VolumeAssignment): void {
    const { id, generation, desired, spec } = assignment;
    this.#named.add(id);
    const known = this.#known.get(id);
    if (known !== undefined && generation < known.assignment.generation) return;
    const isNew = known?.assignment.generation !== generation;
    this.#known.set(id, { assignment });
    if (desired === 'deleted') {
      if (isNew) this.#next(id, () => this.#remove(id, generation));
      else if (known?.reported !== undefined)
        this.#options.report(JSON.parse(known.reported) as VolumeReport);
      return;
    }
    this.#next(id, async () => {
      if (await this.#options.copies.restore(id))
        this.#options.log.warn(
          { volume: id },
          'control names this volume again; it is back from the quarantine',
        );
      if (this.#known.get(id)?.assignment !== assignment) return;
      this.#options.copies.want(id, spec);
      this.#report(id);
    });
  }

  orphans(): Promise<OrphansOfKind> {
    for (const id of this.#known.keys()) if (!this.#named.has(id)) this.#known.delete(id);
    const { present } = this.#options.copies;
    const ids = present.map(({ volumeId }) => volumeId).filter((id) => !this.#named.has(id));
    return Promise.resolve({ ids, persistent: ids.length, total: present.length });
  }

  park(ids: readonly string[]): void {
    for (const id of ids)
      this.#next(id, async () => {
        if (!this.#named.has(id) && (await this.#options.copies.park(id)))
          this.#options.log.warn(
            { volume: id },
            'control does not name this volume; its copy is in quarantine',
          );
      });
  }

  /** Resolves when no copy is being moved or removed. */
  async idle(): Promise<void> {
    await Promise.all(this.#moving.values());
  }

  close(): void {
    this.#closing.abort(new Error('the runner stops'));
  }

  #next(id: string, work: () => Promise<void>): void {
    const moved = (this.#moving.get(id) ?? Promise.resolve())
      .then(work)
      .catch((error: unknown) =>
        this.#options.log.error({ err: error, volume: id }, 'the copy of a volume could not be moved'),
      )
      .then(() => {
        if (this.#moving.get(id) === moved) this.#moving.delete(id);
      });
    this.#moving.set(id, moved);
  }

  async #remove(id: string, generation: number): Promise<void> {
    const isWanted = (): boolean => {
      const assignment = this.#known.get(id)?.assignment;
      return assignment?.desired === 'deleted' && assignment.generation === generation;
    };
    while (isWanted() && !this.#closing.signal.aborted) {
      try {
        await this.#options.copies.restore(id);
        await this.#options.copies.remove(id);
        return this.#send({ kind: 'volume', id, generation, status: 'deleted', detail: {} });
      } catch (error) {
        this.#options.log.error(
          { err: error, volume: id },
          'the copy of a deleted volume could not be removed',
        );
      }
      await sleep(REMOVE_AGAIN_MS, undefined, { signal: this.#closing.signal, ref: false }).catch(
        () => undefined,
      );
    }
  }

  #report(id: string): void {
    const known = this.#known.get(id);
    if (known === undefined || known.assignment.desired === 'deleted') return;
    const { exists, number, dirtySince, commit, error } = this.#options.copies.get(id).state;
    this.#send({
      kind: 'volume',
      id,
      generation: known.assignment.generation,
      status: exists ? 'present' : 'absent',
      detail: {
        commit,
        ...(error !== undefined && { error }),
        ...(number !== undefined && { number }),
        ...(dirtySince !== undefined && { dirty_since: dirtySince }),
      },
    });
  }

  #send(report: VolumeReport): void {
    const known = this.#known.get(report.id);
    const text = JSON.stringify(report);
    if (known === undefined || known.reported === text) return;
    known.reported = text;
    this.#options.report(report);
  }
}
