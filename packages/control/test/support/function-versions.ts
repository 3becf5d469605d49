/** Functions in the database of a test, as a deploy writes them. */
import { newUuid } from '@releap/contract';
import { REGION, type World } from '@releap/testing/world';

export interface TestFunction {
  id: string;
  name: string;
  versionId: string;
}

export interface FunctionFields {
  project?: string;
  current?: boolean;
  public?: boolean;
  tokenHash?: Buffer | null;
  handler?: string[];
  maxInstances?: number | null;
  env?: Record<string, string>;
  state?: 'building' | 'pending' | 'published' | 'failed';
  error?: string | null;
  snapshotKind?: 'pre_entrypoint' | 'fn_ready';
}

/** A function with one version. */
export async function insertFunction(world: World, fields: FunctionFields = {}): Promise<TestFunction> {
  const id = newUuid();
  const name = `fn-${id.slice(0, 8)}`;
  const { current = true, public: isPublic = false, tokenHash = null } = fields;
  await world.database.pool.query(
    `insert into functions (id, project_id, name, region, latest_version, current_version, public, token_hash)
     values ($1, $2, $3, $4, 1, $5, $6, $7)`,
    [id, fields.project ?? world.call.projectId, name, REGION, current ? 1 : null, isPublic, tokenHash],
  );
  return { id, name, versionId: await insertVersion(world, id, 1, fields) };
}

/** @returns its id; a later version becomes current */
export async function insertVersion(
  world: World,
  functionId: string,
  version: number,
  fields: FunctionFields = {},
): Promise<string> {
  const id = newUuid();
  const { handler = [], env = {}, state = 'published', snapshotKind = 'pre_entrypoint' } = fields;
  await world.database.pool.query(
    `insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib,
       scratch_mib, env, snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, max_instances, template_state, template_error)
     values ($1, $2, $3, $4, 'busybox', $5, $6, 8080, 1, 256, 64, $7, $8, 300, 60, 1, $9, $10, $11)`,
    [
      id,
      functionId,
      fields.project ?? world.call.projectId,
      version,
      state === 'building' ? null : JSON.stringify({ type: 'builtin', name: 'busybox' }),
      JSON.stringify(handler),
      JSON.stringify(env),
      snapshotKind,
      fields.maxInstances ?? null,
      state,
      fields.error ?? null,
    ],
  );
  if (version > 1 && fields.current !== false)
    await world.database.pool.query(
      'update functions set current_version = $2, latest_version = $2, revision = revision + 1 where id = $1',
      [functionId, version],
    );
  return id;
}
