import type { ObservedStatus } from '@releap/contract';
import type { Logger } from 'pino';
import type { Assignment, Observation } from './assignment.ts';
import { bootId } from '../vmm/process-identity.ts';
import type { SandboxHistory } from './sandbox-host.ts';
import type { RecordStore, SandboxRecord } from './sandbox-record.ts';

const TELLS_MANIFEST: ReadonlySet<ObservedStatus> = new Set(['running', 'stopped', 'paused']);

/** What is wanted of one sandbox, and what is: on disk, and told to control. */
export class SandboxState {
  readonly vmId: string;
  /** The newest one. */
  assignment: Assignment;
  /** The one that the step at work, or else the last one, is for: what is observed belongs to that. */
  served: Assignment;
  readonly past: SandboxHistory;
  /** Whether the host was restarted since the last runner wrote this down. */
  readonly hostRestarted: boolean;
  #observation: Observation;
  readonly #records: RecordStore;
  readonly #report: (observation: Observation) => void;
  readonly #log: Logger;

  constructor(
    deps: { records: RecordStore; report: (observation: Observation) => void; log: Logger },
    assignment: Assignment,
    record?: SandboxRecord,
  ) {
    this.#records = deps.records;
    this.#report = deps.report;
    this.#log = deps.log;
    this.vmId = assignment.vm_id;
    this.assignment = assignment;
    this.served = assignment;
    this.past = { manifest: record?.manifest, ports: record?.ports };
    this.hostRestarted = record?.bootId !== undefined && record.bootId !== bootId();
    this.#observation = record?.observation ?? {
      vm_id: assignment.vm_id,
      generation: assignment.generation,
      status: 'booting',
    };
  }

  /** The last one. */
  get observation(): Observation {
    return this.#observation;
  }

  get isPersistent(): boolean {
    return this.assignment.spec.persistent;
  }

  /** Whether it is what was wanted last, or has been answered what it is instead. @param isLive whether its VM runs */
  isSettled(isLive: boolean): boolean {
    const { status, generation } = this.#observation;
    if (generation !== this.assignment.generation) return false;
    if (status === 'running') return isLive;
    return ['failed', 'deleted', 'stopped', 'paused'].includes(status);
  }

  /**
   * On disk first, then said: what control hears, a restarted runner still knows. Where the disk is full it is said
   * all the same, for a sandbox must not hang between two states; a restarted runner then finds out by looking. Only
   * what begins needs its record: nothing may exist here that no record names.
   */
  async observe(status: ObservedStatus, more: Partial<Observation> = {}, tell = true): Promise<void> {
    const { manifest } = this.past;
    if (more.port_map !== undefined) this.past.ports = more.port_map;
    this.#observation = {
      vm_id: this.vmId,
      generation: this.served.generation,
      status,
      ...(manifest !== undefined && TELLS_MANIFEST.has(status) ? { manifest_name: manifest } : {}),
      ...more,
    };
    const { assignment } = this;
    const record = { assignment, observation: this.#observation, ...this.past, bootId: bootId() };
    try {
      await this.#records.save(record);
    } catch (error) {
      if (status === 'building' || status === 'booting') throw error;
      this.#log.error({ err: error, status }, 'the record of the sandbox could not be written');
    }
    if (tell) this.#report(this.#observation);
  }

  /** Says again what was observed last. */
  repeat(): void {
    this.#report(this.#observation);
  }
}
