/**
 * Who may do what with which table. A statement writes only tables of its own folder. It reads tables of its own wing and of the wings
 * below it; of a wing above, only the views in `INTERFACES`. `table-rules.test.ts` holds all statements to it: one that is not listed
 * fails, and so does one that is listed for nothing.
 */

/** Tables by the folder whose statements write them. */
export const TABLES: Readonly<Record<string, readonly string[]>> = {
  'platform/auth': ['api_keys', 'users'],
  'platform/credentials': ['join_tokens', 'runner_credentials', 'runner_join_grants', 'service_keys'],
  'platform/events': ['control_servers'],
  'platform/idempotency': ['idempotency_keys'],
  'platform/lifecycle': ['jobs'],
  'platform/work': ['task_leases'],
  'tenancy/billing': [
    'cpu_readings',
    'credit_accounts',
    'credit_ledger',
    'credit_usage',
    'function_meters',
    'sandbox_meters',
  ],
  'tenancy/management': ['audit_log', 'invitations', 'members', 'organizations', 'projects'],
  'tenancy/operator': ['operator_audit'],
  'tenancy/quotas': ['org_quotas', 'org_usage', 'quota_defaults'],
  'fleet/classes': ['hardware_classes'],
  'fleet/regions': ['global_regions', 'regions'],
  'fleet/runners': ['deployment', 'runners'],
  'storage/artifacts': [
    'artifact_locations',
    'artifact_parts',
    'artifact_uploads',
    'artifacts',
    'blobs',
    'region_stores',
    'store_blobs',
    'stores',
  ],
  'storage/images': ['images'],
  'storage/object-stores': ['object_store_mounts', 'object_stores'],
  'storage/registries': ['registry_credentials'],
  'storage/secrets': ['sandbox_secrets', 'secrets'],
  'storage/volumes': [
    'volume_attachments',
    'volume_blobs',
    'volume_conflicts',
    'volume_copies',
    'volume_manifests',
    'volume_uploads',
    'volumes',
  ],
  'compute/moves': ['sandbox_moves'],
  'compute/sandboxes': ['sandbox_env', 'sandbox_leases', 'sandboxes'],
  'compute/scheduler': ['host_allocations', 'scheduler_reservations'],
  'compute/snapshots': ['snapshot_env', 'snapshots'],
  'compute/usage': ['usage_batches', 'usage_hourly', 'usage_hours', 'usage_minutes'],
  'edge/compat': ['compat_sandboxes', 'compat_snapshots'],
  'edge/endpoints': ['endpoints', 'preview_links'],
  'edge/gateways': ['grant_changes'],
  'functions/instances': ['function_instances'],
  'functions/invocations': [
    'invocation_hours',
    'invocation_payloads',
    'invocation_result_bytes',
    'invocations',
  ],
  'functions/schedules': ['function_schedules'],
  'functions/templates': ['function_template_failures', 'function_templates'],
  'functions/versions': ['function_versions', 'functions'],
};

/** Of the database package. */
export const INTERNAL: readonly string[] = ['schema_migrations'];

/**
 * Views that every wing may read, and functions that may write, which every statement may call, by owner. A view has only the columns that
 * are needed.
 */
export const INTERFACES: Readonly<Record<string, readonly string[]>> = {
  'platform/retention': ['make_month_partition', 'make_usage_partition'],
  'tenancy/billing': ['close_start_meters', 'ledger_entries'],
  'tenancy/management': ['live_projects'],
  'tenancy/quotas': ['org_used', 'take_quota', 'try_quota'],
  'fleet/regions': ['region_contents'],
  'fleet/runners': ['host_states'],
  'storage/artifacts': ['blob_references', 'region_store_locations', 'store_blob_references'],
  'compute/sandboxes': ['renew_idle_leases', 'sandbox_classes', 'sandbox_states'],
  'compute/scheduler': ['recount_host_allocation'],
  'compute/snapshots': ['snapshot_states'],
  'functions/versions': ['function_roots', 'function_states'],
};

/** Tables that other folders write, too, with SQL of the owner. */
export const SHARED: readonly { table: string; writers: readonly string[]; why: string }[] = [
  {
    table: 'jobs',
    writers: [
      'compute/jobs',
      'compute/sandboxes',
      'compute/snapshots',
      'functions/instances',
      'storage/images',
    ],
    why: 'a job begins and ends with what it makes, in the same statement, by JOB_EVENTS',
  },
];

/** Tables by statement. */
type Uses = Readonly<Record<string, readonly string[]>>;

/** Statements that write tables of other folders, or read tables of wings above. */
export const EXCEPTIONS: readonly { why: string; writes?: Uses; reads?: Uses }[] = [
  {
    why: 'an organization begins in one transaction with its first user or key, below the wing of organizations',
    writes: {
      'user-make': ['members', 'organizations'],
      'platform/auth/bootstrap.ts: insert into organizations (id, name, bootstrap) values ($1, $2, true)': [
        'organizations',
      ],
      'platform/auth/bootstrap.ts: insert into projects (id, org_id, name) values ($1, $2, $3)': ['projects'],
    },
    reads: { 'bootstrap-find': ['organizations', 'projects'] },
  },
  {
    why: 'a key is replaced under the lock of its project',
    reads: {
      'platform/auth/api-keys.ts: select 1 from projects where id = $1 for no key update': ['projects'],
    },
  },
  {
    why: 'the row of a deleted project is the lease of its teardown',
    writes: {
      'project-teardown-claim': ['projects'],
      'project-teardown-finish': ['projects'],
      'project-teardown-renew': ['projects'],
    },
    reads: { 'projects-deleted-of': ['projects'] },
  },
  {
    why: 'what was written by the clock of before moves at once when the clock is set',
    writes: { 'meters-move': ['runners'] },
  },
  {
    why: 'a sandbox begins in one statement with what belongs to it',
    writes: { 'sandbox-insert': ['sandbox_secrets'], 'sandbox-insert-placed': ['sandbox_secrets'] },
  },
  {
    why: 'what belongs to a row is deleted in one statement with it',
    writes: {
      'purge-sandboxes': ['cpu_readings', 'sandbox_secrets'],
      'function-instances-purge': ['cpu_readings', 'sandboxes'],
      'functions-deleted-purge': ['function_meters'],
      'teardown-function-rows': ['function_meters'],
      'function-delete': ['function_schedules', 'invocation_payloads', 'invocations'],
    },
  },
  {
    why: 'a sandbox that its lease ends is deleted, and shown as stopped, in one transaction',
    writes: { 'compat-stopped-forget': ['compat_sandboxes'], 'compat-stopped-show': ['compat_sandboxes'] },
    reads: { 'compat-stopped-limit': ['compat_sandboxes'] },
  },
  {
    why: 'an invocation is metered in one statement with its record',
    writes: { 'invocations-charge-running': ['function_meters'], 'invocations-record': ['function_meters'] },
  },
  {
    why: 'a schedule moves on in one statement with its invocation',
    writes: { 'schedules-fire': ['invocation_payloads', 'invocations'] },
  },
];
