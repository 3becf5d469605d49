import type { ObservedStatus } from '@releap/contract';
import type { Logger } from 'pino';
import { isMove, type Assignment, type Observation } from './assignment.ts';
import { bootId } from '../vmm/process-identity.ts';
import type { SandboxHistory } from './sandbox-host.ts';
import type { RecordStore, SandboxRecord } from './sandbox-record.ts';

/** Statuses that last: after a power failure the record must not be one of before. */
const LASTING: ReadonlySet<ObservedStatus> = new Set(['running', 'stopped', 'paused']);
const TELLS_MANIFEST: ReadonlySet<ObservedStatus> = new Set(['running', 'stopped', 'paused']);

/** Desired and observed state of a sandbox: on disk, and reported to control. */
export class SandboxState {
  readonly vmId: string;
  /** The newest assignment. */
  assignment: Assignment;
  /** The assignment of the current or last step, to which observations belong. */
  served: Assignment;
  readonly past: SandboxHistory;
  /** Whether the host was restarted since the record was written. */
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
    this.hostRestarted = record !== undefined && record.bootId !== bootId();
    // A power failure may have brought back an older record: its ports may be another sandbox's by now. That there were
    // some says that it has run.
    const ports = record?.ports !== undefined && this.hostRestarted ? [] : record?.ports;
    this.past = { manifest: record?.manifest, ports };
    this.#observation = record?.observation ?? {
      vm_id: assignment.vm_id,
      generation: assignment.generation,
      status: 'booting',
    };
  }

  /** The last observation. */
  get observation(): Observation {
    return this.#observation;
  }

  get isPersistent(): boolean {
    return this.assignment.spec.persistent;
  }

  /** Whether the newest assignment was applied, or answered with another status. @param isLive whether its VM runs */
  isSettled(isLive: boolean): boolean {
    const { status, generation } = this.#observation;
    if (generation !== this.assignment.generation) return false;
    if (status === 'running') return isLive;
    return ['failed', 'deleted', 'stopped', 'paused'].includes(status);
  }

  /**
   * Writes the record, then reports: a restarted runner must know what control knows. If the disk is full it reports all the
   * same, because a sandbox must not stay in a transient state; a restarted runner then inspects the local state. Only a
   * new sandbox requires its record: no resource may exist without one.
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
      if (LASTING.has(status)) {
        const durable = this.#makeDurable();
        // Its former host removes its copy after this report.
        if (isMove(this.served.spec.origin)) await durable;
      }
    } catch (error) {
      if (status === 'building' || status === 'booting') throw error;
      this.#log.error({ err: error, status }, 'the record of the sandbox could not be written');
    }
    if (tell) this.#report(this.#observation);
  }

  /** In the background for most: a report does not wait for the disk. */
  async #makeDurable(): Promise<void> {
    await this.#records.makeDurable(this.vmId).catch((error: unknown) => {
      this.#log.warn({ err: error }, 'the record of the sandbox could not be fsynced');
    });
  }

  /** Reports the last observation again. */
  repeat(): void {
    this.#report(this.#observation);
  }
}
