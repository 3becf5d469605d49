/**
 * Assignments and observations in the flat form that tests of the control plane are written in, and how they become what
 * is on the link of a runner.
 */
import type {
  BuildAssignment,
  BuildReport,
  BuildSpec,
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

export interface Assignment {
  vm_id: string;
  generation: number;
  desired: DesiredState;
  start_from?: 'disk' | 'memory';
  spec: SandboxSpec;
}
export interface Observation extends SandboxDetail {
  vm_id: string;
  generation: number;
  status: ObservedStatus;
}
export interface SnapshotAssignment extends SnapshotSpec {
  snapshot_id: string;
  generation: number;
  desired: 'ready' | 'deleted';
}
export interface SnapshotObservation extends SnapshotDetail {
  snapshot_id: string;
  generation: number;
  status: SnapshotReport['status'];
}
export interface BuildJob extends BuildSpec {
  job_id: string;
  attempt: number;
}

export function toAssignment({ id, generation, desired, spec }: SandboxAssignment): Assignment {
  const { start_from, ...rest } = spec;
  return { vm_id: id, generation, desired, ...(start_from === undefined ? {} : { start_from }), spec: rest };
}

export function toReport({ vm_id, generation, status, ...detail }: Observation): SandboxReport {
  return { kind: 'sandbox', id: vm_id, generation, status, detail };
}

export function toSnapshotAssignment(assignment: LinkSnapshotAssignment): SnapshotAssignment {
  const { id, generation, desired, spec } = assignment;
  return { snapshot_id: id, generation, desired, ...spec };
}

export function toSnapshotReport(observation: SnapshotObservation): SnapshotReport {
  const { snapshot_id, generation, status, ...detail } = observation;
  return { kind: 'snapshot', id: snapshot_id, generation, status, detail };
}

export function toBuildJob({ id, generation, spec }: BuildAssignment): BuildJob {
  return { job_id: id, attempt: generation, ...spec };
}

export function toBuildReport(
  { job_id, attempt }: BuildJob,
  result: BuildReport['detail'],
  status: BuildReport['status'] = result.error === undefined ? 'done' : 'failed',
): BuildReport {
  return { kind: 'build', id: job_id, generation: attempt, status, detail: result };
}
