/** Environments of sandboxes, apart from their rows: up to a megabyte each, so only a bounded batch is ever read. */
import type { RootSource } from '@releap/contract';
import { queryAll, statement, type Environment, type Queryable, type SandboxRow } from '@releap/database';

const READ = statement<{ sandbox_id: string; env: Environment }>(
  'sandbox-env-read',
  'select sandbox_id, env from sandbox_env where sandbox_id = any($1::uuid[])',
);

/** A row with all that its runner is told. */
export interface AssignableRow extends SandboxRow {
  env: Environment;
  /** `spec.root`, where a registry's credential can be put beside it. */
  root: RootSource;
}

/** Whether the environment has to be read before the runner can be told: what is to go needs none. */
export function needsEnvironment(row: Pick<SandboxRow, 'env_bytes' | 'desired'>): boolean {
  return row.env_bytes > 0 && row.desired !== 'deleted';
}

/** Rows whose environment is empty, or of no interest, as they are. */
export function assignable(row: SandboxRow, env: Environment = {}): AssignableRow {
  return { ...row, env, root: row.spec.root };
}

/**
 * Environments by sandbox id; ids without one are absent. The caller bounds the batch: `env_bytes` of a row says how
 * much is going to be read.
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
