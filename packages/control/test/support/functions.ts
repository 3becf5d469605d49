/** Functions and invocations as rows of the database, for tests below the API. */
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

/** A function with one version that can serve. */
export async function newFunction(
  database: Database,
  projectId: string,
  options: { name?: string; vcpus?: number; memMib?: number } = {},
): Promise<FunctionRow> {
  const { name = `f-${newUuid().slice(0, 8)}`, vcpus = 1, memMib = 512 } = options;
  const [id, versionId] = [newUuid(), newUuid()];
  await database.pool.query(
    `insert into functions (id, project_id, name, region, latest_version, current_version) values ($1, $2, $3, $4, 1, 1)`,
    [id, projectId, name, REGION],
  );
  await newVersion(database, { id, projectId }, { versionId, version: 1, vcpus, memMib });
  return { id, projectId, name, versionId, vcpus, memMib };
}

export async function newVersion(
  database: Database,
  of: { id: string; projectId: string },
  {
    versionId = newUuid(),
    version,
    vcpus = 1,
    memMib = 512,
  }: {
    versionId?: string;
    version: number;
    vcpus?: number;
    memMib?: number;
  },
): Promise<string> {
  await database.pool.query(
    `insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib, scratch_mib, env,
       snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, template_state)
     values ($1, $2, $3, $4, 'busybox', '{}', '[]', 8080, $5, $6, 512, '{}', 'pre_entrypoint', 300, 60, 1, 'published')`,
    [versionId, of.id, of.projectId, version, vcpus, memMib],
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
