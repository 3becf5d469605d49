/** Functions and invocations as rows of the database, as a deploy and a gateway write them. */
import { newUuid } from '@releap/contract';
import type { Database } from '@releap/database';
import type { FinishedInvocation } from '../../src/functions/invocations/store.ts';
import { REGION } from './billing.ts';

export interface FunctionRow {
  id: string;
  projectId: string;
  name: string;
  versionId: string;
  vcpus: number;
  memMib: number;
}

export interface VersionFields {
  versionId?: string;
  vcpus?: number;
  memMib?: number;
  scratchMib?: number;
  handler?: string[];
  maxInstances?: number | null;
  env?: Record<string, string>;
  state?: 'building' | 'pending' | 'published' | 'failed';
  error?: string | null;
  snapshotKind?: 'pre_entrypoint' | 'fn_ready';
}

export interface FunctionFields extends VersionFields {
  name?: string;
  /** Whether its version is the current one. */
  current?: boolean;
  public?: boolean;
  tokenHash?: Buffer | null;
}

/** A function with one version that can serve. */
export async function newFunction(
  database: Database,
  projectId: string,
  fields: FunctionFields = {},
): Promise<FunctionRow> {
  const [id, versionId] = [newUuid(), newUuid()];
  const { name = `fn-${id.slice(0, 8)}`, vcpus = 1, memMib = 512 } = fields;
  const { current = true, public: isPublic = false, tokenHash = null } = fields;
  await database.pool.query(
    `insert into functions (id, project_id, name, region, latest_version, current_version, public, token_hash)
     values ($1, $2, $3, $4, 1, $5, $6, $7)`,
    [id, projectId, name, REGION, current ? 1 : null, isPublic, tokenHash],
  );
  await newVersion(database, { id, projectId }, { ...fields, versionId, version: 1 });
  return { id, projectId, name, versionId, vcpus, memMib };
}

/** @returns its id; it does not become current */
export async function newVersion(
  database: Database,
  of: { id: string; projectId: string },
  fields: VersionFields & { version: number },
): Promise<string> {
  const { versionId = newUuid(), version, vcpus = 1, memMib = 512, scratchMib = 512 } = fields;
  const { handler = [], env = {}, state = 'published', snapshotKind = 'pre_entrypoint' } = fields;
  await database.pool.query(
    `insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib,
       scratch_mib, env, snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, max_instances, template_state, template_error)
     values ($1, $2, $3, $4, 'busybox', $5, $6, 8080, $7, $8, $9, $10, $11, 300, 60, 1, $12, $13, $14)`,
    [
      versionId,
      of.id,
      of.projectId,
      version,
      state === 'building' ? null : JSON.stringify({ type: 'builtin', name: 'busybox' }),
      JSON.stringify(handler),
      vcpus,
      memMib,
      scratchMib,
      JSON.stringify(env),
      snapshotKind,
      fields.maxInstances ?? null,
      state,
      fields.error ?? null,
    ],
  );
  return versionId;
}

/** A synchronous invocation of it that has succeeded after 20 ms, a minute ago. */
export function finished(of: FunctionRow, values: Partial<FinishedInvocation> = {}): FinishedInvocation {
  const queuedAt = values.queuedAt ?? new Date(Date.now() - 60_000);
  return {
    id: newUuid(),
    queuedAt,
    functionId: of.id,
    versionId: of.versionId,
    version: 1,
    source: 'invoke',
    status: 'succeeded',
    attempt: null,
    startedAt: queuedAt,
    finishedAt: new Date(queuedAt.getTime() + 20),
    durationMs: 20,
    cold: false,
    error: null,
    result: null,
    ...values,
  };
}
