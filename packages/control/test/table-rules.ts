/**
 * Who may do what with which table. A statement writes only tables of its own folder. It reads tables of its own wing and of the wings
 * below it, and of a wing above it only the views of `INTERFACES`. `table-rules.test.ts` holds all statements to it.
 */

/** Tables by the folder whose statements write them. */
export const TABLES: Readonly<Record<string, readonly string[]>> = {
  'platform/auth': ['api_keys', 'users'],
  'platform/credentials': ['runner_credentials', 'runner_join_grants', 'service_keys'],
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
  'fleet/regions': ['global_regions', 'regions'],
  'fleet/runners': ['deployment', 'runners'],
  'storage/artifacts': ['artifact_locations', 'artifact_parts', 'artifact_uploads', 'artifacts', 'blobs'],
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

/** Views that all wings may read, by their owners. Columns that no statement needs are not in them. */
export const INTERFACES: Readonly<Record<string, readonly string[]>> = {
  'storage/artifacts': ['blob_references'],
  'tenancy/billing': ['ledger_entries'],
};

/** Tables that other folders write, with SQL of the owner. */
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

interface Exceptions {
  why: string;
  /** Tables by statement. */
  of: Readonly<Record<string, readonly string[]>>;
}

/** Statements that write tables of other folders. */
export const WRITES: readonly Exceptions[] = [
  {
    why: 'an organization begins in one transaction with its first user or key, below the wing of organizations',
    of: {
      'user-make': ['members', 'organizations'],
      'platform/auth/bootstrap.ts: insert into organizations (id, name, bootstrap) values ($1, $2, true)': [
        'organizations',
      ],
      'platform/auth/bootstrap.ts: insert into projects (id, org_id, name) values ($1, $2, $3)': ['projects'],
    },
  },
  {
    why: 'the row of a deleted project is the lease of its teardown',
    of: {
      'project-teardown-claim': ['projects'],
      'project-teardown-finish': ['projects'],
      'project-teardown-renew': ['projects'],
    },
  },
  {
    why: 'what was written by the clock of before moves at once when the clock is set',
    of: { 'meters-move': ['runners'] },
  },
  {
    why: 'a sandbox begins in one statement with what belongs to it',
    of: { 'sandbox-insert': ['sandbox_secrets'], 'sandbox-insert-placed': ['sandbox_secrets'] },
  },
  {
    why: 'what belongs to a row is deleted in one statement with it',
    of: {
      'purge-sandboxes': ['cpu_readings', 'sandbox_secrets'],
      'function-instances-purge': ['cpu_readings', 'sandboxes'],
      'functions-deleted-purge': ['function_meters'],
      'teardown-function-rows': ['function_meters'],
      'function-delete': ['function_schedules', 'invocation_payloads', 'invocations'],
    },
  },
  {
    why: 'an invocation is metered in one statement with its record',
    of: { 'invocations-charge-running': ['function_meters'], 'invocations-record': ['function_meters'] },
  },
  {
    why: 'a schedule moves on in one statement with its invocation',
    of: { 'schedules-fire': ['invocation_payloads', 'invocations'] },
  },
  {
    why: 'to be moved to the owner',
    of: {
      'compat-sandbox-touch': ['sandbox_leases'],
      'compat-stopped-forget': ['compat_sandboxes'],
      'compat-stopped-show': ['compat_sandboxes'],
      'sandbox-lease-renew-idle': ['compat_sandboxes'],
      'function-start-meters-close': ['sandbox_meters'],
    },
  },
];

/** Statements that read tables of wings above them. To be replaced by views: nothing is added. */
export const UPWARD_READS: Readonly<Record<string, readonly string[]>> = {
  'artifact-end-upload': ['snapshots'],
  'artifact-upload': ['snapshots'],
  'artifacts-mark-all': ['function_versions', 'functions', 'sandboxes', 'snapshots'],
  'artifacts-mark-changed': ['function_versions', 'functions', 'sandboxes', 'snapshots'],
  'artifacts-place': ['sandboxes'],
  'artifacts-register-all': ['snapshots'],
  'artifacts-register-changed': ['snapshots'],
  'artifacts-register-snapshots': ['snapshots'],
  'auth-api-key': ['organizations', 'projects'],
  'blob-named-for-runner': ['sandboxes'],
  'charge-bursts': ['sandboxes'],
  'charge-function': ['functions'],
  'charge-functions': ['functions'],
  'charge-meter': ['functions', 'runners'],
  'charge-meters': ['functions', 'runners'],
  'charge-meters-due': ['runners'],
  'charge-meters-of-orgs': ['functions', 'runners'],
  'compat-stopped-limit': ['compat_sandboxes'],
  'credits-crossing': ['runners'],
  'gateway-function-revisions': ['functions'],
  'mounted-stores-read': ['sandboxes'],
  'mounted-stores-revisions': ['sandboxes'],
  'object-store-mounted': ['sandboxes'],
  'object-store-mounts-room': ['sandboxes'],
  'operator-host': ['runners'],
  'overdraft-running': ['sandboxes'],
  'placeholders-missed': ['sandboxes', 'snapshots'],
  'placeholders-of-ended': ['sandboxes', 'snapshots'],
  'platform/auth/api-keys.ts: select 1 from projects where id = $1 for no key update': ['projects'],
  'platform/auth/bootstrap.ts: select o.id as org_id, p.id as project_id from organizations o join projects p on p.org_id = o.id and p.name = $1 and p.deleted_at is null where o.bootstrap':
    ['organizations', 'projects'],
  'projects-deleted-of': ['projects'],
  'purge-runners': ['sandboxes', 'snapshots'],
  'runner-known': ['runners'],
  'runner-secret-domains': ['sandboxes'],
  'sandbox-secrets-read': ['sandboxes'],
  'sandbox-secrets-revisions': ['sandboxes'],
  'secret-erase': ['sandboxes', 'snapshots'],
  'teardown-volumes': ['sandboxes'],
  'volume-attached': ['sandboxes'],
  'volume-commit-pending': ['sandboxes'],
  'volume-copies-forget': ['sandboxes'],
  'volume-copies-place': ['sandboxes'],
  'volume-for-runner': ['sandboxes'],
  'volume-open': ['sandboxes'],
  'volume-request-commit': ['sandboxes'],
  'volume-restore-mounted': ['sandboxes'],
};
