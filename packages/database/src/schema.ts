/**
 * Rows of the tables that many parts of the control plane read: their columns and types, in one place. Statements list
 * columns with `columns('s', SANDBOX_COLUMNS)` and never use `select *`, which would also read columns of later versions. Migrations define the tables; a test compares these lists with them.
 */
import type {
  ClassKind,
  DesiredState,
  Origin,
  PortMapping,
  RootSource,
  SandboxMode,
  SandboxStatus,
} from '@releap/contract';

/**
 * The resolved request of a sandbox, for its runner and its record. Immutable. A new field is optional in `version` 1; a
 * field whose absence changes the meaning needs a new version.
 */
export interface StoredSpec {
  version: 1;
  /** Null in a snapshot, which has its own name. */
  name: string | null;
  /** Virtual CPUs that the guest sees. */
  vcpus: number;
  ports: { vm_port: number; proto: 'tcp' | 'udp' }[];
  egress_policy: { enabled: boolean; allow: string[] } | null;
  /** The requested image. */
  image_ref: string;
  /** Source of the root file system, for the runner. */
  root: RootSource;
  /** Its origin, instead of an empty disk; used until it has run. */
  origin: Origin | null;
  /** Runs instead of the entrypoint and command of the image. */
  entrypoint?: string[];
  /** Runs its processes instead of the user of the image. */
  user?: string;
  /** The one host that it may run on. */
  required_runner_id?: string;
  /** Slugs of the classes of hardware that it asks for, by kind: it is placed on hosts that have these or higher ones. */
  classes?: Partial<Record<ClassKind, string>> | undefined;
  /** The span that created it (W3C Trace Context), while traces are on. */
  traceparent?: string;
}

export type Environment = Record<string, string>;

/** A row of `sandboxes`, without its access token's hash. Its environment is in `sandbox_env`. */
export interface SandboxRow {
  id: string;
  project_id: string;
  /** `service`: an internal sandbox of the service for the project; tenants neither list nor reach it. */
  owner_kind: 'project' | 'service';
  owner_service: string | null;
  region: string;
  status: SandboxStatus;
  desired: DesiredState;
  generation: number;
  deadline_at: Date | null;
  runner_id: string | null;
  /** Assigned to its runner, which may hold a VM, a disk, a network slot or an artifact of it. */
  assigned_to_runner: boolean;
  job_id: string;
  error: string | null;
  mode: SandboxMode;
  /** Guaranteed cores. */
  cpu: number;
  mem_mib: number;
  scratch_mib: number;
  gpu_host: number;
  docker_data_mib: number | null;
  volume_count: number;
  persistent: boolean;
  spot: boolean;
  cpu_arch: string;
  spec: StoredSpec;
  /** Size of its environment as JSON text. 0: it has none. */
  env_bytes: number;
  manifest_name: string | null;
  has_memory: boolean;
  /** Why its host cannot resume the saved memory as it is now. */
  memory_blocked: string | null;
  start_from: 'disk' | 'memory';
  forked_from: string | null;
  /** The fork of it that its host has not taken yet. */
  pending_fork: string | null;
  /** Its move to another host, while that is in progress. */
  move_id: string | null;
  /** The newest snapshot that its disk descends from. */
  parent_snapshot_id: string | null;
  vm_ip: string | null;
  host_ip: string | null;
  port_map: PortMapping[];
  spot_evicted_at: Date | null;
  created_at: Date;
  updated_at: Date;
  deleted_at: Date | null;
}

export const SANDBOX_COLUMNS = everyColumn<SandboxRow>()([
  'id',
  'project_id',
  'owner_kind',
  'owner_service',
  'region',
  'status',
  'desired',
  'generation',
  'deadline_at',
  'runner_id',
  'assigned_to_runner',
  'job_id',
  'error',
  'mode',
  'cpu',
  'mem_mib',
  'scratch_mib',
  'gpu_host',
  'docker_data_mib',
  'volume_count',
  'persistent',
  'spot',
  'cpu_arch',
  'spec',
  'env_bytes',
  'manifest_name',
  'has_memory',
  'memory_blocked',
  'start_from',
  'forked_from',
  'pending_fork',
  'move_id',
  'parent_snapshot_id',
  'vm_ip',
  'host_ip',
  'port_map',
  'spot_evicted_at',
  'created_at',
  'updated_at',
  'deleted_at',
]);

export type SnapshotRowStatus = 'pending' | 'ready' | 'failed' | 'deleted';

/** A row of `snapshots`. The environment of a full one is in `snapshot_env`. */
export interface SnapshotRow {
  id: string;
  project_id: string;
  name: string;
  kind: 'disk' | 'full';
  status: SnapshotRowStatus;
  desired: 'ready' | 'deleted';
  generation: number;
  deadline_at: Date | null;
  runner_id: string;
  /** Assigned to its runner, which may hold a VM, a disk, a network slot or an artifact of it. */
  assigned_to_runner: boolean;
  job_id: string;
  error: string | null;
  sandbox_id: string;
  parent_id: string | null;
  region: string;
  no_changes: boolean;
  artifact_ref: string | null;
  manifest_name: string | null;
  fc_version: string | null;
  cpu_marker: string | null;
  /** Bigints, which the driver gives as text. */
  mem_bytes: string | null;
  disk_bytes: string | null;
  mode: SandboxMode;
  cpu: number;
  mem_mib: number;
  scratch_mib: number;
  cpu_arch: string;
  /** That of its sandbox, for those that are made from it. */
  spec: StoredSpec;
  env_bytes: number;
  /** The part of the service that owns it; tenants neither list nor delete it. Null: the project does. */
  owner_service: string | null;
  created_at: Date;
  updated_at: Date;
  deleted_at: Date | null;
}

export const SNAPSHOT_COLUMNS = everyColumn<SnapshotRow>()([
  'id',
  'project_id',
  'name',
  'kind',
  'status',
  'desired',
  'generation',
  'deadline_at',
  'runner_id',
  'assigned_to_runner',
  'job_id',
  'error',
  'sandbox_id',
  'parent_id',
  'region',
  'no_changes',
  'artifact_ref',
  'manifest_name',
  'fc_version',
  'cpu_marker',
  'mem_bytes',
  'disk_bytes',
  'mode',
  'cpu',
  'mem_mib',
  'scratch_mib',
  'cpu_arch',
  'spec',
  'env_bytes',
  'owner_service',
  'created_at',
  'updated_at',
  'deleted_at',
]);

/**
 * Keys of rows whose columns have another name. `assigned_to_runner` is the column `held` in SQL: a rename would take two
 * migrations and a bridge trigger on the busiest tables (docs/upgrading.md), for a name that no client sees.
 */
const COLUMN_NAMES: Record<string, string> = { assigned_to_runner: 'held' };

/** `s.id, s.held as assigned_to_runner, …`: a select list or RETURNING list over the table itself. */
export function columns(alias: string, names: readonly string[]): string {
  return names
    .map((name) => {
      const column = COLUMN_NAMES[name];
      return column === undefined ? `${alias}.${name}` : `${alias}.${column} as ${name}`;
    })
    .join(', ');
}

/** The same over rows that were selected with `columns` already. */
export function rowColumns(alias: string, names: readonly string[]): string {
  return names.map((name) => `${alias}.${name}`).join(', ');
}

/** A list that does not compile when a key of the row is missing in it. */
export function everyColumn<Row>() {
  return <const Names extends readonly (keyof Row & string)[]>(
    names: Exclude<keyof Row, Names[number]> extends never ? Names : never,
  ): Names => names;
}
