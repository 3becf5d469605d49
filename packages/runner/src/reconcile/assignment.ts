/**
 * Assignments and observations as this machine stores them (see `sandbox-record.ts`), and their conversion from and to
 * the messages of the link. The stored form is older than the link's: records of all versions must be readable.
 */
import type {
  DesiredState,
  ObservedStatus,
  SandboxAssignment,
  SandboxDetail,
  SandboxReport,
  SandboxSpec,
  SnapshotAssignment as LinkSnapshotAssignment,
  SnapshotDetail,
  SnapshotReport,
  SnapshotSpec,
} from '@releap/contract/runner';

/** Desired state of a sandbox. */
export interface Assignment {
  vm_id: string;
  generation: number;
  desired: DesiredState;
  /** Source of `running` for a sandbox that does not run; `disk` when absent. */
  start_from?: 'disk' | 'memory';
  /** Parent of the spans of its first start, while traces are on. */
  traceparent?: string;
  spec: SandboxSpec;
}

/** It is copied from another host, whose sandbox it was. */
export function isMove(origin: SandboxSpec['origin']): boolean {
  return origin?.type === 'snapshot' && origin.moved === true;
}

/** Observed state of a sandbox. */
export interface Observation extends SandboxDetail {
  vm_id: string;
  generation: number;
  status: ObservedStatus;
}

/** Desired state of a snapshot. */
export interface SnapshotAssignment extends SnapshotSpec {
  snapshot_id: string;
  generation: number;
  desired: 'ready' | 'deleted';
}

/** Observed state of a snapshot. */
export interface SnapshotObservation extends SnapshotDetail {
  snapshot_id: string;
  generation: number;
  status: 'ready' | 'failed' | 'deleted';
}

export function fromSandboxAssignment({ id, generation, desired, spec }: SandboxAssignment): Assignment {
  const { start_from, traceparent, ...rest } = spec;
  return {
    vm_id: id,
    generation,
    desired,
    ...(start_from === undefined ? {} : { start_from }),
    ...(traceparent === undefined ? {} : { traceparent }),
    spec: rest,
  };
}

export function toSandboxReport({ vm_id, generation, status, ...detail }: Observation): SandboxReport {
  return { kind: 'sandbox', id: vm_id, generation, status, detail };
}

export function fromSnapshotAssignment(assignment: LinkSnapshotAssignment): SnapshotAssignment {
  const { id, generation, desired, spec } = assignment;
  return { snapshot_id: id, generation, desired, ...spec };
}

export function toSnapshotReport(observation: SnapshotObservation): SnapshotReport {
  const { snapshot_id, generation, status, ...detail } = observation;
  return { kind: 'snapshot', id: snapshot_id, generation, status, detail };
}
