/**
 * Assignments and observations as this machine stores them (see `sandbox-record.ts`), and how they are read from, and
 * become, what is on the link. The stored form is older than the link's: records of every version must be read.
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

/** What must be of one sandbox. */
export interface Assignment {
  vm_id: string;
  generation: number;
  desired: DesiredState;
  /** What `running` starts from when the sandbox does not run; `disk` when absent. */
  start_from?: 'disk' | 'memory';
  spec: SandboxSpec;
}

/** What is of one sandbox. */
export interface Observation extends SandboxDetail {
  vm_id: string;
  generation: number;
  status: ObservedStatus;
}

/** What must be of one snapshot. */
export interface SnapshotAssignment extends SnapshotSpec {
  snapshot_id: string;
  generation: number;
  desired: 'ready' | 'deleted';
}

/** What is of one snapshot. */
export interface SnapshotObservation extends SnapshotDetail {
  snapshot_id: string;
  generation: number;
  status: 'ready' | 'failed' | 'deleted';
}

export function fromSandboxAssignment({ id, generation, desired, spec }: SandboxAssignment): Assignment {
  const { start_from, ...rest } = spec;
  return { vm_id: id, generation, desired, ...(start_from === undefined ? {} : { start_from }), spec: rest };
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
