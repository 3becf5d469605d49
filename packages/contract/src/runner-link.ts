/**
 * What the control plane and a runner say to each other, over one WebSocket that the runner dials
 * (`GET /internal/runners/link`, `Authorization: Bearer <runner token>`). JSON text frames, one message each.
 *
 * The rules that both sides rely on:
 * - Control states what must be (`Assignment`), the runner makes it so and says what is (`Observation`).
 *   There is no command that happens once: every message may be lost, repeated or answered late.
 * - What was wanted and cannot be had is answered with what is instead: `running` by a sandbox that could not be
 *   paused, `paused` or `stopped` by one that could not be resumed or started and has lost nothing. `failed` means
 *   that nothing of it can be used any more as it is.
 * - `generation` fences. It grows by one whenever control wants something else of a sandbox. An observation
 *   of an older generation is ignored by control; an assignment of an older one is ignored by the runner.
 * - After every (re)connect the runner says `hello`, control answers with the whole `sync`. What the runner
 *   holds and `sync` does not name ends; its persistent bytes go into the runner's quarantine. Only `deleted` deletes.
 */
import type { RunnerFacts } from './runner/hello.ts';
import type { DesiredState, ObservedStatus, PortMapping, SandboxSpec } from './runner/sandbox.ts';
import type { RootSource } from './runner/source.ts';
import type { CpuReading } from './runner/usage.ts';
export type { RunnerFacts } from './runner/hello.ts';
export * from './runner/limits.ts';
export type { DesiredState, ObservedStatus, Origin, PortMapping, SandboxSpec } from './runner/sandbox.ts';
export type { RootSource } from './runner/source.ts';
export type { CpuReading } from './runner/usage.ts';

/** Control to runner: what must be of one sandbox. */
export interface Assignment {
  vm_id: string;
  generation: number;
  desired: DesiredState;
  /**
   * What `running` begins with when the sandbox does not run: its disk (a boot; whatever memory was kept is thrown
   * away) or its kept memory (a resume). `disk` when absent.
   */
  start_from?: 'disk' | 'memory';
  spec: SandboxSpec;
}

/** Runner to control: what is. Repeated until control acknowledges the same `seq`. */
export interface Observation {
  vm_id: string;
  generation: number;
  status: ObservedStatus;
  /**
   * Why it failed, or why it is not what was wanted: with `running` why it could not be paused, with `paused` why
   * it could not be resumed, with `stopped` why it could not be started or has ended by itself.
   */
  error?: string;
  vm_ip?: string;
  host_ip?: string;
  port_map?: PortMapping[];
  /** Digest of the root image that was booted. With it a persistent sandbox counts as one that has a disk to boot. */
  manifest_name?: string;
  /** Only with `paused`: false when the memory that was kept cannot be used any more. */
  memory?: boolean;
}

/**
 * Control to runner: what must be of one snapshot. `ready`: it is to exist; where it does not yet, it is captured from
 * its sandbox. A snapshot that was reported `ready` is never captured again. `deleted`: nothing of it may remain.
 */
export interface SnapshotAssignment {
  snapshot_id: string;
  /** Fences as that of a sandbox does. */
  generation: number;
  desired: 'ready' | 'deleted';
  vm_id: string;
  kind: 'disk' | 'full';
  /** The snapshot that the sandbox's disk descends from, if any: where nothing was written since, it is reused. */
  parent_id?: string;
  /** It was reported `ready` before: a runner that does not have it says `failed`, and captures nothing. */
  captured?: true;
}

/** Runner to control: what is of a snapshot. Repeated until acknowledged. */
export interface SnapshotObservation {
  snapshot_id: string;
  generation: number;
  status: 'ready' | 'failed' | 'deleted';
  /** Why it failed. The sandbox has lost nothing. */
  error?: string;
  /** The sandbox had written nothing since its parent, whose disk this one shares. */
  no_changes?: boolean;
  /** Where the runner keeps it, as a name without meaning to others. */
  artifact_ref?: string;
  /** Digest of the root image that its disk lies on. */
  manifest_name?: string;
  /** Bytes that the disk takes, without what it shares with others. */
  disk_bytes?: number;
  /** Only with memory: the VMM and its version, the CPU model and accelerator, and the size of the guest's memory. */
  fc_version?: string;
  cpu_marker?: string;
  mem_bytes?: number;
}

/** A job that control hands to a runner under a lease; `attempt` is the fencing token. */
export interface BuildJob {
  job_id: string;
  attempt: number;
  image_id: string;
  root: RootSource;
  docker: boolean;
}

export interface BuildResult {
  job_id: string;
  attempt: number;
  /** Absent when the build succeeded. */
  error?: string;
  manifest_name?: string;
  layer_count?: number;
}

export type RunnerMessage =
  | {
      type: 'hello';
      /** Stable id (UUID) that the runner keeps in its home folder. */
      runner_id: string;
      region: string;
      /** Base URL of the runner's data server: `http://host:port` or `unix:/absolute/path.sock`. */
      data_url: string;
      facts: RunnerFacts;
    }
  | { type: 'observe'; seq: number; observations: Observation[] }
  | { type: 'observe-snapshots'; seq: number; observations: SnapshotObservation[] }
  | { type: 'build-result'; seq: number; result: BuildResult }
  /** Every `USAGE_MS`. Counters: a message that is lost is made good by the next one, and none is acknowledged. */
  | { type: 'usage'; readings: CpuReading[] }
  /** Every `HEARTBEAT_MS`; the answer to silence is `lost`. */
  | { type: 'heartbeat'; ready: boolean };

export type ControlMessage =
  /**
   * Everything this runner is to hold. First message after `hello`. With `more` it goes on in the next `sync`:
   * the whole is known, and orphans may be told, only after the one without it.
   */
  | { type: 'sync'; assignments: Assignment[]; snapshots?: SnapshotAssignment[]; more?: boolean }
  /** One that is new or has changed. */
  | { type: 'assign'; assignment: Assignment }
  | { type: 'assign-snapshot'; snapshot: SnapshotAssignment }
  | { type: 'build'; job: BuildJob }
  /** All of `seq` and below is in the database. */
  | { type: 'ack'; seq: number };
