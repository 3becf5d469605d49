import type { BlobStore } from '../../storage/artifacts/blob-store.ts';
import type { Lifecycle } from '../../compute/sandboxes/lifecycle.ts';
import type { Snapshots } from '../../compute/snapshots/snapshots.ts';
import {
  BOUNDS,
  clampLimit,
  cursorPosition,
  FUNCTION_CURSORS,
  FUNCTION_VERSION_CURSORS,
  functionNotFound,
  functionOperations,
  nextCursor,
  resolveFunctionDeploy,
  type FunctionDeployRequest,
  type FunctionItem,
  type FunctionList,
  type FunctionRecord,
  type FunctionVersionList,
  type FunctionVersionRecord,
  type PlatformLimits,
} from '@releap/contract';
import {
  FUNCTION_VERSION_COLUMNS,
  queryAll,
  statement,
  type FunctionRow,
  type FunctionVersionRow,
  type Queryable,
} from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { newestFirst } from '../../platform/newest-first.ts';
import { deleteFunction } from './delete.ts';
import { IS_DELETED } from './deleted-name.ts';
import { deployFunction, type DeployContext, type Requested } from './deploy.ts';
import { readFunctionForm } from './deploy-form.ts';
import { updateConfig } from './config.ts';
import { currentVersion, requireFunction, toVersionRecord } from './functions.ts';
import { setPublic } from './public-endpoint.ts';

/** $1 project */
const LIST = newestFirst<
  Pick<
    FunctionRow,
    'id' | 'name' | 'current_version' | 'latest_version' | 'public' | 'created_at' | 'updated_at'
  >
>('function-list', {
  columns: 'id, name, current_version, latest_version, public, created_at, updated_at',
  from: 'functions',
  where: `project_id = $1 and not (${IS_DELETED('functions')})`,
  parameters: 1,
});

/** $1 functions, $2 a version of each */
const LISTED_VERSIONS = statement<
  Pick<FunctionVersionRow, 'function_id' | 'image_ref' | 'template_state' | 'snapshot_kind'>
>(
  'function-list-versions',
  `select v.function_id, v.image_ref, v.template_state, v.snapshot_kind
     from unnest($1::uuid[], $2::integer[]) as t(id, version)
     join function_versions v on v.function_id = t.id and v.version = t.version`,
);

/** Its created_at grows with the number. $1 function */
const VERSIONS = newestFirst<FunctionVersionRow>('function-versions', {
  columns: FUNCTION_VERSION_COLUMNS.join(', '),
  from: 'function_versions',
  where: 'function_id = $1',
  parameters: 1,
});

/** With the current version of each; until the image of one is built, the newest. */
async function withVersions(
  on: Queryable,
  rows: readonly Pick<
    FunctionRow,
    'id' | 'name' | 'current_version' | 'latest_version' | 'public' | 'created_at' | 'updated_at'
  >[],
): Promise<FunctionItem[]> {
  const found = await queryAll(on, LISTED_VERSIONS, [
    rows.map(({ id }) => id),
    rows.map((row) => row.current_version ?? row.latest_version),
  ]);
  const versions = new Map(found.map((version) => [version.function_id, version]));
  return rows.flatMap(
    ({ id, name, current_version, latest_version, public: isPublic, created_at, updated_at }) => {
      const version = versions.get(id);
      // It was deleted meanwhile.
      if (version === undefined) return [];
      const { image_ref, template_state, snapshot_kind } = version;
      return [
        {
          id,
          name,
          current_version: current_version ?? latest_version,
          latest_version,
          image_ref,
          template_state,
          snapshot_kind,
          public: isPublic,
          created_at: created_at.toISOString(),
          updated_at: updated_at.toISOString(),
        },
      ];
    },
  );
}

type FunctionRoutes = DeployContext & {
  blobs: BlobStore;
  lifecycle: Lifecycle;
  platform: PlatformLimits;
  snapshots: Snapshots;
};

export function functionRoutes({ workload }: Planes, context: FunctionRoutes): void {
  const { database, platform } = context;

  workload.operation(
    functionOperations.deployFunction,
    async ({ body, upload, principal, once, abortSignal }) => {
      const requested =
        upload === null
          ? fromJson(body as FunctionDeployRequest, platform)
          : await readFunctionForm(upload, { ...context, signal: abortSignal() });
      return await once(requested, (ids) => deployFunction(context, principal, requested, ids));
    },
  );

  workload.operation(
    functionOperations.listFunctions,
    async ({ query, principal }): Promise<FunctionList> => {
      const after = cursorPosition(FUNCTION_CURSORS, query.cursor);
      const isPaged = query.limit !== undefined || query.cursor !== undefined;
      const limit = isPaged ? clampLimit(query.limit) : BOUNDS.functionsPerProject;
      const { rows, last } = await LIST.page(database.pool, [principal.projectId], limit, after);
      return {
        functions: await withVersions(database.pool, rows),
        next_cursor: nextCursor(FUNCTION_CURSORS, last),
      };
    },
  );

  workload.operation(
    functionOperations.getFunction,
    async ({ params, principal }): Promise<FunctionRecord> => {
      const row = await requireFunction(database.pool, principal.projectId, params.name);
      const current = await currentVersion(database.pool, row);
      if (current === undefined) throw functionNotFound(params.name);
      return {
        id: row.id,
        name: row.name,
        created_at: row.created_at.toISOString(),
        updated_at: row.updated_at.toISOString(),
        current_version: toVersionRecord(current),
        latest_version: row.latest_version,
        public: row.public,
        requires_token: row.token_hash !== null,
      };
    },
  );

  workload.operation(
    functionOperations.listFunctionVersions,
    async ({ params, query, principal }): Promise<FunctionVersionList> => {
      const after = cursorPosition(FUNCTION_VERSION_CURSORS, query.cursor);
      const { id } = await requireFunction(database.pool, principal.projectId, params.name);
      const isPaged = query.limit !== undefined || query.cursor !== undefined;
      const most = isPaged ? 0 : BOUNDS.functionVersionListBytes;
      const versions: FunctionVersionRecord[] = [];
      let last = after;
      let bytes = 0;
      do {
        const page = await VERSIONS.page(database.pool, [id], clampLimit(query.limit), last);
        versions.push(...page.rows.map(toVersionRecord));
        bytes += JSON.stringify(page.rows).length;
        last = page.last;
      } while (last !== null && bytes < most);
      return { versions, next_cursor: nextCursor(FUNCTION_VERSION_CURSORS, last) };
    },
  );

  workload.operation(functionOperations.deleteFunction, ({ params, principal }) =>
    deleteFunction(context, principal.projectId, params.name),
  );

  workload.operation(functionOperations.updateFunctionConfig, ({ params, body, principal }) =>
    updateConfig(context, principal.projectId, params.name, body),
  );

  workload.operation(functionOperations.setFunctionPublic, ({ params, body, principal, ids }) =>
    setPublic(context, principal.projectId, params.name, body, ids),
  );
}

function fromJson(body: FunctionDeployRequest, platform: PlatformLimits): Requested {
  const { name, image, ...version } = resolveFunctionDeploy(body, platform);
  return { name, image, version };
}
