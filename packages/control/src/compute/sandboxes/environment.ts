/** Environments of sandboxes, in their own table: up to 1 MiB each, so they are only read in bounded batches. */
import type { RootSource } from '@releap/contract';
import type { SandboxSpec } from '@releap/contract/runner';
import { queryAll, statement, type Environment, type Queryable, type SandboxRow } from '@releap/database';

const READ = statement<{ sandbox_id: string; env: Environment }>(
  'sandbox-env-read',
  'select sandbox_id, env from sandbox_env where sandbox_id = any($1::uuid[])',
);

/** A row with everything that an assignment contains. */
export interface AssignableRow extends SandboxRow {
  env: Environment;
  /** `spec.root`, to which a pull credential can be added. */
  root: RootSource;
  /** Where its secrets may be sent, if anywhere. */
  egressSecrets?: SandboxSpec['egress_secrets'];
  /** What it mounts when it boots. */
  objectStores?: SandboxSpec['object_stores'];
  volumes?: SandboxSpec['volumes'];
}

/** Whether an assignment needs the environment: a deletion does not. */
export function needsEnvironment(row: Pick<SandboxRow, 'env_bytes' | 'desired'>): boolean {
  return row.env_bytes > 0 && row.desired !== 'deleted';
}

/** Rows without an environment, or that do not need it. */
export function assignable(row: SandboxRow, env: Environment = {}): AssignableRow {
  return { ...row, env, root: row.spec.root };
}

/**
 * Environments by sandbox id; ids without one are absent. The caller bounds the batch by the rows' `env_bytes`.
 */
export async function readEnvironments(
  on: Queryable,
  ids: readonly string[],
): Promise<Map<string, Environment>> {
  if (ids.length === 0) return new Map();
  return new Map((await queryAll(on, READ, [ids])).map((row) => [row.sandbox_id, row.env]));
}

/** In the order given. Reads nothing when no row needs its environment. */
export async function withEnvironments(on: Queryable, rows: readonly SandboxRow[]): Promise<AssignableRow[]> {
  const found = await readEnvironments(
    on,
    rows.filter(needsEnvironment).map((row) => row.id),
  );
  return rows.map((row) => assignable(row, found.get(row.id)));
}
