/** Reads of functions and their versions. Those with a project are scoped by it: another project's answer like unknown ones. */
import { functionNotFound, type FunctionVersionRecord } from '@releap/contract';
import {
  columns,
  FUNCTION_COLUMNS,
  FUNCTION_VERSION_COLUMNS,
  queryOne,
  statement,
  type FunctionRow,
  type FunctionVersionRow,
  type Queryable,
} from '@releap/database';
import { isDeletedName } from './deleted-name.ts';

const COLUMNS = columns('f', FUNCTION_COLUMNS);
const VERSION_COLUMNS = columns('v', FUNCTION_VERSION_COLUMNS);

/** $1 project, $2 name */
const BY_NAME = statement<FunctionRow>(
  'function-by-name',
  `select ${COLUMNS} from functions f where f.project_id = $1 and f.name = $2`,
);
/** $1 function, $2 number */
const VERSION = statement<FunctionVersionRow>(
  'function-version-by-number',
  `select ${VERSION_COLUMNS} from function_versions v where v.function_id = $1 and v.version = $2`,
);

export function functionByName(
  on: Queryable,
  projectId: string,
  name: string,
): Promise<FunctionRow | undefined> {
  return isDeletedName(name) ? Promise.resolve(undefined) : queryOne(on, BY_NAME, [projectId, name]);
}

/** @throws 404 */
export async function requireFunction(on: Queryable, projectId: string, name: string): Promise<FunctionRow> {
  const found = await functionByName(on, projectId, name);
  if (found === undefined) throw functionNotFound(name);
  return found;
}

/** The version that serves requests; until the image of one is built, the newest. Undefined when the function was deleted meanwhile. */
export function currentVersion(
  on: Queryable,
  { id, current_version: current, latest_version: latest }: FunctionRow,
): Promise<FunctionVersionRow | undefined> {
  return queryOne(on, VERSION, [id, current ?? latest]);
}

export function toVersionRecord(row: FunctionVersionRow): FunctionVersionRecord {
  return {
    id: row.id,
    version: row.version,
    image_ref: row.image_ref,
    handler: row.handler,
    port: row.port,
    vcpus: row.vcpus,
    mem_mib: row.mem_mib,
    scratch_mib: row.scratch_mib,
    timeout_s: row.timeout_s,
    scaledown_window_s: row.scaledown_window_s,
    max_concurrency: row.max_concurrency,
    max_instances: row.max_instances,
    env: row.env,
    template_state: row.template_state,
    template_error: row.template_error,
    snapshot_kind: row.snapshot_kind,
    build_job: row.build_job,
    created_at: row.created_at.toISOString(),
  };
}
