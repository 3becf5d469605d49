/**
 * What the database stores and no API shows. The one place in the tests that knows private tables and columns: a test that
 * needs another one adds it here. Tests of migrations and of single statements keep their own SQL.
 */
import assert from 'node:assert/strict';
import {
  columns,
  SANDBOX_COLUMNS,
  SNAPSHOT_COLUMNS,
  type Database,
  type Environment,
  type QueryResultRow,
  type SandboxRow,
  type SnapshotRow,
} from '@releap/database';

type On = Pick<Database, 'pool'>;

export interface InspectedSandbox extends SandboxRow {
  env: Environment;
}

export interface InspectedEntry {
  org_id: string;
  sandbox_id: string | null;
  /** Nano-credits, as text. */
  amount: string;
  kind: string;
  note: string | null;
}

export interface InspectedMeter {
  id: string;
  opened_at: Date;
  metered_until: Date;
  closed_at: Date | null;
  /** Why it is not charged for now. */
  parked_reason: string | null;
  parked_until: Date | null;
}

export interface InspectedReading {
  cpu_usec: string;
  age_usec: string;
}

export interface InspectedApiKey {
  key_prefix: string;
  last_used_at: Date | null;
  revoked_at: Date | null;
}

const SANDBOXES = `select ${columns('s', SANDBOX_COLUMNS)}, coalesce(e.env, '{}') as env
   from sandboxes s left join sandbox_env e on e.sandbox_id = s.id`;
const SNAPSHOTS = `select ${columns('s', SNAPSHOT_COLUMNS)} from snapshots s`;
const ENTRIES = 'select s.org_id, s.sandbox_id, s.amount, s.kind, s.note from ledger_entries s';
const METERS = `select s.id, s.opened_at, s.metered_until, s.closed_at, s.parked_reason, s.parked_until
   from sandbox_meters s`;

/** The rows of `s` whose columns have these values, in order of `order`. */
async function rowsOf<Row extends QueryResultRow>(
  { pool }: On,
  select: string,
  wanted: Record<string, string>,
  order: string,
): Promise<Row[]> {
  const where = Object.keys(wanted).map((column, index) => `s.${column} = $${index + 1}`);
  const { rows } = await pool.query<Row>(
    `${select} where ${['true', ...where].join(' and ')} order by ${order}`,
    Object.values(wanted),
  );
  return rows;
}

/** @param of the sandbox's UUID, or the job that creates it */
export async function inspect(on: On, of: { uuid: string } | { jobId: string }): Promise<InspectedSandbox> {
  const wanted: Record<string, string> = 'uuid' in of ? { id: of.uuid } : { job_id: of.jobId };
  const [row] = await rowsOf<InspectedSandbox>(on, SANDBOXES, wanted, 's.id');
  assert.ok(row, `no sandbox with ${JSON.stringify(wanted)}`);
  return row;
}

/** All sandboxes (of a project), oldest first. */
export function inspectSandboxes(on: On, of: { project_id?: string } = {}): Promise<InspectedSandbox[]> {
  return rowsOf(on, SANDBOXES, of, 's.created_at, s.id');
}

export async function inspectSnapshot(on: On, id: string): Promise<SnapshotRow> {
  const [row] = await rowsOf<SnapshotRow>(on, SNAPSHOTS, { id }, 's.id');
  assert.ok(row, `no snapshot ${id}`);
  return row;
}

/** All snapshots (of a project, of a sandbox), oldest first. */
export function inspectSnapshots(
  on: On,
  of: { project_id?: string; sandbox_id?: string } = {},
): Promise<SnapshotRow[]> {
  return rowsOf(on, SNAPSHOTS, of, 's.created_at, s.id');
}

/** Entries of the ledger: grants and adjustments of an organization, charges of its sandboxes. */
export function inspectLedger(
  on: On,
  of: { org_id?: string; sandbox_id?: string; kind?: string },
): Promise<InspectedEntry[]> {
  return rowsOf(on, ENTRIES, of, 's.created_at');
}

export function inspectMeters(
  on: On,
  of: { org_id?: string; sandbox_id?: string },
): Promise<InspectedMeter[]> {
  return rowsOf(on, METERS, of, 's.id');
}

/** The CPU counter that a runner has reported last for the sandbox. */
export async function inspectReading(on: On, sandboxId: string): Promise<InspectedReading | undefined> {
  const select = 'select s.cpu_usec, s.age_usec from cpu_readings s';
  const [row] = await rowsOf<InspectedReading>(on, select, { sandbox_id: sandboxId }, 's.sandbox_id');
  return row;
}

export function inspectApiKeys(on: On, of: { project_id?: string } = {}): Promise<InspectedApiKey[]> {
  return rowsOf(on, 'select s.key_prefix, s.last_used_at, s.revoked_at from api_keys s', of, 's.id');
}

/** All resources of a deleted project are removed, and its teardown is over. */
export async function isTornDown(on: On, projectId: string): Promise<boolean> {
  const select = 'select s.torn_down_at is not null and s.teardown_after is null as done from projects s';
  const [row] = await rowsOf<{ done: boolean }>(on, select, { id: projectId }, 's.id');
  assert.ok(row, `no project ${projectId}`);
  return row.done;
}

/** Tables with a row that contains the text in any column. */
export async function tablesWith({ pool }: On, text: string): Promise<string[]> {
  const { rows } = await pool.query<{ name: string }>(
    `select quote_ident(table_name) as name from information_schema.tables
      where table_schema = 'public' order by table_name`,
  );
  const found: string[] = [];
  for (const { name } of rows) {
    const { rowCount } = await pool.query(`select from ${name} t where position($1 in t::text) > 0 limit 1`, [
      text,
    ]);
    if (rowCount !== 0) found.push(name);
  }
  return found;
}
