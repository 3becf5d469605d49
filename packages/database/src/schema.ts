/** The tables as Kysely sees them. Migrations are the truth; a test compares the two. */
import type { ColumnType, Generated, JSONColumnType } from 'kysely';
import type {
  LedgerKind,
  Origin,
  PortMapping,
  RegistryKind,
  RootSource,
  RunnerFacts,
  SandboxStatus,
  DesiredState,
  SandboxMode,
} from '@releap/contract';

/** A moment that the database sets by itself when it is not given. */
type Stamp = ColumnType<Date, Date | string | undefined, Date | string>;
type MaybeStamp = ColumnType<Date | null, Date | string | null | undefined, Date | string | null>;

export interface OrganizationTable {
  id: string;
  name: string;
  default_region: string | null;
  created_at: Stamp;
  /** Whose personal organization it is. */
  personal_of: string | null;
  bootstrap: Generated<boolean>;
  deleted_at: MaybeStamp;
}

export interface ProjectTable {
  id: string;
  org_id: string;
  name: string;
  default_region: string | null;
  created_at: Stamp;
  deleted_at: MaybeStamp;
  /** When the teardown is to look at it next; null when nothing is to be torn down. */
  teardown_after: MaybeStamp;
  torn_down_at: MaybeStamp;
}

export interface UserTable {
  id: string;
  issuer: string;
  subject: string;
  email: string;
  email_verified: Generated<boolean>;
  name: string;
  created_at: Stamp;
  updated_at: Stamp;
}

export interface MemberTable {
  org_id: string;
  user_id: string;
  role: 'owner' | 'member';
  created_at: Stamp;
}

export interface InvitationTable {
  id: string;
  org_id: string;
  email: string;
  email_key: string;
  role: 'owner' | 'member';
  invited_by: string;
  created_at: Stamp;
  expires_at: Stamp;
  accepted_at: MaybeStamp;
  accepted_by: string | null;
}

export interface AuditLogTable {
  id: string;
  org_id: string;
  project_id: string | null;
  actor_kind: 'user' | 'operator' | 'system';
  actor_id: string | null;
  actor_name: string | null;
  action: string;
  target_kind: string;
  target_id: string;
  details: JSONColumnType<Record<string, unknown>>;
  ip: string | null;
  user_agent: string | null;
  outcome: 'done' | 'refused';
  created_at: Stamp;
}

export interface ApiKeyTable {
  id: string;
  project_id: string;
  name: string;
  token_hash: Buffer;
  key_prefix: string;
  created_at: Stamp;
  revoked_at: MaybeStamp;
  last_used_at: MaybeStamp;
}

export interface GlobalRegionTable {
  id: string;
  name: string;
}

export interface RegionTable {
  id: string;
  name: string;
  enabled: Generated<boolean>;
  is_default: Generated<boolean>;
  toolbox_proxy_url: string | null;
  global_region_id: string | null;
  created_at: Stamp;
}

export type RunnerStatus = 'online' | 'offline' | 'lost';

export interface RunnerTable {
  id: string;
  region: string;
  status: RunnerStatus;
  ready: Generated<boolean>;
  data_url: string;
  facts: JSONColumnType<RunnerFacts>;
  server_id: string | null;
  /** A bigint, which the driver gives as text. */
  epoch: Generated<string>;
  last_seen_at: Stamp;
  created_at: Stamp;
  /** Set while it is being drained: it takes nothing new. */
  draining_since: MaybeStamp;
  drain_force: Generated<boolean>;
}

export interface ControlServerTable {
  id: string;
  last_seen_at: Stamp;
}

export type ImageStatus = 'pending' | 'ready' | 'failed';

export interface ImageTable {
  id: string;
  /** Null for a built-in image. */
  project_id: string | null;
  name: string;
  source: JSONColumnType<Record<string, unknown>>;
  status: ImageStatus;
  manifest_name: string | null;
  layer_count: number | null;
  docker: Generated<boolean>;
  region: string | null;
  job_id: string;
  error: string | null;
  created_at: Stamp;
  updated_at: Stamp;
}

export interface SandboxTable {
  id: string;
  project_id: string;
  name: string;
  region: string;
  status: SandboxStatus;
  desired: DesiredState;
  generation: Generated<number>;
  deadline_at: MaybeStamp;
  runner_id: string | null;
  held: Generated<boolean>;
  job_id: string;
  error: string | null;
  mode: SandboxMode;
  cpu: number;
  vcpus: number;
  mem_mib: number;
  scratch_mib: number;
  gpu_host: Generated<number>;
  docker_data_mib: number | null;
  ports: JSONColumnType<{ vm_port: number; proto: 'tcp' | 'udp' }[]>;
  env: JSONColumnType<Record<string, string>>;
  egress_policy: JSONColumnType<{ enabled: boolean; allow: string[] }> | null;
  persistent: Generated<boolean>;
  spot: Generated<boolean>;
  cpu_arch: string;
  volume_count: Generated<number>;
  image_ref: string;
  root: JSONColumnType<RootSource>;
  manifest_name: string | null;
  has_memory: Generated<boolean>;
  start_from: Generated<'disk' | 'memory'>;
  forked_from: string | null;
  /** What it begins with instead of an empty disk; of interest until it has run. */
  origin: JSONColumnType<Origin> | null;
  /** The newest snapshot that its disk descends from. */
  parent_snapshot_id: string | null;
  vm_ip: string | null;
  host_ip: string | null;
  port_map: JSONColumnType<PortMapping[]>;
  access_token_hash: Buffer;
  spot_evicted_at: MaybeStamp;
  created_at: Stamp;
  updated_at: Stamp;
  deleted_at: MaybeStamp;
}

export type SnapshotRowStatus = 'pending' | 'ready' | 'failed' | 'deleted';

export interface SnapshotTable {
  id: string;
  project_id: string;
  name: string;
  kind: 'disk' | 'full';
  status: SnapshotRowStatus;
  desired: 'ready' | 'deleted';
  generation: Generated<number>;
  deadline_at: MaybeStamp;
  runner_id: string;
  held: boolean;
  job_id: string;
  error: string | null;
  sandbox_id: string;
  parent_id: string | null;
  region: string;
  no_changes: Generated<boolean>;
  artifact_ref: string | null;
  manifest_name: string | null;
  fc_version: string | null;
  cpu_marker: string | null;
  /** Bigints, which the driver gives as text. */
  mem_bytes: string | null;
  disk_bytes: string | null;
  image_ref: string;
  root: JSONColumnType<RootSource>;
  mode: SandboxMode;
  cpu: number;
  vcpus: number;
  mem_mib: number;
  scratch_mib: number;
  cpu_arch: string;
  ports: JSONColumnType<{ vm_port: number; proto: 'tcp' | 'udp' }[]>;
  env: JSONColumnType<Record<string, string>>;
  egress_policy: JSONColumnType<{ enabled: boolean; allow: string[] }> | null;
  created_at: Stamp;
  updated_at: Stamp;
  deleted_at: MaybeStamp;
}

export type JobStatus = 'queued' | 'running' | 'done' | 'failed';

export interface JobTable {
  id: string;
  project_id: string | null;
  kind: string;
  status: JobStatus;
  attempts: Generated<number>;
  lease_until: MaybeStamp;
  run_after: Stamp;
  runner_id: string | null;
  sandbox_id: string | null;
  image_id: string | null;
  payload: JSONColumnType<Record<string, unknown>>;
  error: string | null;
  created_at: Stamp;
  updated_at: Stamp;
  finished_at: MaybeStamp;
}

/** Whole numbers of 64 bits: the driver gives them as text. */
type BigInteger = ColumnType<string, string | bigint | number, string | bigint | number>;

export interface CreditAccountTable {
  org_id: string;
  /** Nano-credits; always the sum of the organization's ledger. */
  balance: ColumnType<string, never, never>;
  overdraft_limit: ColumnType<string | null, string | bigint | null | undefined, string | bigint | null>;
  updated_at: Stamp;
}

export interface CreditLedgerTable {
  id: ColumnType<string, never, never>;
  org_id: string;
  /** Nano-credits. */
  amount: BigInteger;
  kind: LedgerKind;
  sandbox_id: string | null;
  region: string | null;
  note: string | null;
  period_from: MaybeStamp;
  period_to: MaybeStamp;
  request_id: string | null;
  created_at: Stamp;
}

export interface SandboxMeterTable {
  id: ColumnType<string, never, never>;
  sandbox_id: string;
  org_id: string;
  region: string;
  runner_id: string | null;
  millicores: number;
  mem_mib: number;
  gpus: number;
  spot: boolean;
  opened_at: Date;
  metered_until: Date;
  closed_at: MaybeStamp;
  carry: Generated<string>;
}

export interface CpuReadingTable {
  sandbox_id: string;
  incarnation: string;
  cpu_usec: BigInteger;
  age_usec: BigInteger;
  carry: Generated<string>;
  updated_at: Stamp;
}

export interface IdempotencyKeyTable {
  id: Buffer;
  request_hash: Buffer;
  salt: Buffer;
  attempt: Generated<number>;
  lease_until: MaybeStamp;
  sealed: Buffer | null;
  created_at: Stamp;
  expires_at: Date;
}

export interface SecretTable {
  id: string;
  project_id: string;
  name: string;
  allowed_domains: JSONColumnType<string[]>;
  description: string | null;
  key_id: string;
  envelope: Buffer;
  created_at: Stamp;
  updated_at: Stamp;
  deleted_at: MaybeStamp;
}

export interface SandboxSecretTable {
  sandbox_id: string;
  placeholder_hash: Buffer;
  secret_id: string;
  name: string;
  inherited: Generated<boolean>;
}

export interface RegistryCredentialTable {
  project_id: string;
  host: string;
  kind: RegistryKind;
  username: string;
  description: string | null;
  key_id: string;
  envelope: Buffer;
  created_at: Stamp;
  updated_at: Stamp;
}

export interface Tables {
  organizations: OrganizationTable;
  projects: ProjectTable;
  api_keys: ApiKeyTable;
  global_regions: GlobalRegionTable;
  regions: RegionTable;
  runners: RunnerTable;
  control_servers: ControlServerTable;
  images: ImageTable;
  sandboxes: SandboxTable;
  snapshots: SnapshotTable;
  jobs: JobTable;
  credit_accounts: CreditAccountTable;
  credit_ledger: CreditLedgerTable;
  sandbox_meters: SandboxMeterTable;
  cpu_readings: CpuReadingTable;
  idempotency_keys: IdempotencyKeyTable;
  secrets: SecretTable;
  sandbox_secrets: SandboxSecretTable;
  registry_credentials: RegistryCredentialTable;
  users: UserTable;
  members: MemberTable;
  invitations: InvitationTable;
  audit_log: AuditLogTable;
}
