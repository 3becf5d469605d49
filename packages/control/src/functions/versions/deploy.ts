/** `POST /fns`: function and version in one statement, whose lock of the function's row numbers the versions. */
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { BuildQueue } from '../../storage/images/build-queue.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { ReadImage } from '../../storage/images/resolve-root.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { Scheduler } from '../../compute/scheduler/scheduler.ts';
import {
  checkScaledownWindow,
  badRequest,
  BOUNDS,
  type FunctionDeployResponse,
  type FunctionTemplateState,
  type ResolvedFunction,
  type ResolvedFunctionVersion,
} from '@releap/contract';
import { isUniqueViolation, queryOne, statement, type Queryable } from '@releap/database';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { IdGenerator } from '../../platform/idempotency/id-generator.ts';
import { functionImageName } from '../../storage/images/function-images.ts';
import { putImage, type NewImage } from '../../storage/images/images.ts';
import {
  assertAvailable,
  DOCKERFILE_REF,
  dockerfileRoot,
  resolveRoot,
  type ResolvedRoot,
} from '../../storage/images/resolve-root.ts';
import { lockProject } from '../../tenancy/management/access.ts';
import { BUILD_NEED } from '../../storage/images/routes.ts';
import { IS_DELETED } from './deleted-name.ts';
import { functionByName } from './functions.ts';
import { NOTHING_SERVES } from './version-states.ts';

export type DeployContext = {
  artifacts: Artifacts;
  billing: Billing;
  builds: BuildQueue;
  database: Database;
  events: EventBus;
  limits: { functionWindowMaxS: number };
  readImage: ReadImage;
  regions: Regions;
  scheduler: Scheduler;
};

interface Written {
  function_id: string;
  version_id: string;
  name: string;
  version: number;
  image_ref: string;
  build_job: string | null;
  template_state: FunctionTemplateState;
  current_version: number;
}

const WRITTEN =
  'v.function_id, v.id as version_id, f.name, v.version, v.image_ref, v.build_job, v.template_state, ' +
  'coalesce(f.current_version, f.latest_version) as current_version';

/**
 * A version with a root is current at once if it is to be activated now, or nothing that serves would be replaced. `created_at` of a
 * version is taken under the lock, so that it grows with the number.
 * $1 function, $2 project, $3 name, $4 region, $5 most functions, $6 version, $7 image_ref, $8 root (null: it is built), $9 handler,
 * $10 port, $11 vcpus, $12 mem_mib, $13 scratch_mib, $14 env, $15 snapshot_kind, $16 timeout_s, $17 scaledown_window_s,
 * $18 max_concurrency, $19 max_instances, $20 state, $21 image, $22 job, $23 activate
 */
const DEPLOY = statement<Written>(
  'function-deploy',
  `with f as (
     insert into functions as f (id, project_id, name, region, latest_version, current_version)
     select $1::uuid, $2::uuid, $3::text, $4::text, 1, case when $8::jsonb is null then null else 1 end
      where exists (select 1 from functions where project_id = $2 and name = $3)
         or (select count(*) from functions n where n.project_id = $2 and not (${IS_DELETED('n')})) < $5::integer
     on conflict (project_id, name) do update
       set latest_version = f.latest_version + 1, revision = f.revision + 1,
           current_version = case when $8::jsonb is not null and ($23::text = 'now' or ${NOTHING_SERVES('f')}) then f.latest_version + 1
                                  else f.current_version end
     returning f.id, f.project_id, f.name, f.latest_version, f.current_version
   ), v as (
     insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib,
            scratch_mib, env, snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, max_instances, template_state,
            image_id, build_job, activate, created_at)
     select $6::uuid, f.id, f.project_id, f.latest_version, $7::text, $8::jsonb, $9::jsonb, $10::integer, $11::integer, $12::integer,
            $13::integer, $14::jsonb, $15::text, $16::integer, $17::integer, $18::integer, $19::integer, $20::text,
            $21::uuid, $22::uuid, $23::text, clock_timestamp()
       from f returning *
   )
   select ${WRITTEN} from v join f on f.id = v.function_id`,
);

/** What an interrupted earlier attempt has written. $1 version, $2 project */
const MADE = statement<Written>(
  'function-deployed',
  `select ${WRITTEN} from function_versions v join functions f on f.id = v.function_id where v.id = $1 and v.project_id = $2`,
);

/** A deploy before its image and region are resolved. */
export interface Requested {
  name: string;
  version: ResolvedFunctionVersion;
  /** An existing image, or what is built for it. */
  image: ResolvedFunction['image'] | BuildOf;
}

interface BuildOf {
  type: 'dockerfile';
  dockerfile: { text: string } | { path: string };
  /** Of a Dockerfile that needs none it may be absent. */
  context?: { digest: string; bytes: number };
}

/** @throws 400, 404, 409 */
export async function deployFunction(
  context: DeployContext,
  { projectId, ...principal }: Principal,
  requested: Requested,
  ids: IdGenerator,
): Promise<FunctionDeployResponse> {
  const { database, events, builds, limits } = context;
  checkScaledownWindow(requested.version.scaledown_window_s, limits.functionWindowMaxS);
  // Always in this order: an earlier attempt with the same seed has generated the same values.
  const [functionId, versionId] = [ids.uuid(), ids.uuid()];
  const made = () => queryOne(database.pool, MADE, [versionId, projectId]);
  if (ids.retried) {
    const before = await made();
    if (before !== undefined) return before;
  }
  if (requested.image.type === 'dockerfile') await context.billing.requireCredits(principal.orgId);
  const region = await regionOf(context, { projectId, ...principal }, requested);
  const version = { functionId, versionId, projectId, region, ...requested };
  const { image } = requested;
  const write = async (): Promise<Written> => {
    if (image.type !== 'dockerfile') {
      const resolved = await resolveRoot(context.readImage, projectId, image);
      await assertAvailable(context.artifacts, projectId, resolved, region);
      return database.transaction((client) => writeVersion(client, version, resolved));
    }
    return database.transaction(async (client) => {
      const { imageId, jobId } = await putImage(client, projectId, imageOf(version, image), ids);
      return writeVersion(client, version, { imageRef: DOCKERFILE_REF, imageId, jobId });
    });
  };
  const written = await write().catch(async (error: unknown) => {
    // An earlier attempt that was still running has written it meanwhile.
    const before = isUniqueViolation(error) ? await made() : undefined;
    if (before === undefined) throw error;
    return before;
  });
  events.emit('functions-changed', [written.function_id]);
  if (image.type === 'dockerfile') builds.kick();
  else events.emit('versions-pending');
  return written;
}

/** The region of the function; of a new one the default of the project. */
async function regionOf(
  { database, regions, scheduler }: DeployContext,
  principal: Principal,
  { name, image }: Requested,
): Promise<string> {
  const existing = await functionByName(database.pool, principal.projectId, name);
  const need = { ...BUILD_NEED, isBuilt: image.type === 'dockerfile' };
  return existing?.region ?? regions.resolve(null, principal, scheduler.regionWithMostCapacity(need));
}

interface NewVersion {
  functionId: string;
  versionId: string;
  projectId: string;
  name: string;
  /** Of a new function. */
  region: string;
  version: ResolvedFunctionVersion;
}

/** The image that is built for a version. */
function imageOf({ versionId, projectId, region }: NewVersion, { dockerfile, context }: BuildOf): NewImage {
  return {
    name: functionImageName(versionId),
    source: {
      type: 'dockerfile',
      ...('path' in dockerfile ? { path: dockerfile.path } : { dockerfile: dockerfile.text }),
      ...(context === undefined ? {} : { context_bytes: context.bytes }),
    },
    root: dockerfileRoot(projectId, {
      dockerfile,
      docker: false,
      ...(context === undefined ? {} : { context }),
    }),
    docker: false,
    region,
  };
}

/** @throws 400 when the project has as many functions as it may */
async function writeVersion(
  on: Queryable,
  { functionId, versionId, projectId, name, region, version }: NewVersion,
  image: ResolvedRoot | { imageRef: string; imageId: string; jobId: string },
): Promise<Written> {
  const isBuilt = 'jobId' in image;
  await lockProject(on, projectId);
  const written = await queryOne(on, DEPLOY, [
    functionId,
    projectId,
    name,
    region,
    BOUNDS.functionsPerProject,
    versionId,
    image.imageRef,
    isBuilt ? null : JSON.stringify(image.root),
    JSON.stringify(version.handler),
    version.port,
    version.vcpus,
    version.mem_mib,
    version.scratch_mib,
    JSON.stringify(version.env),
    version.snapshot_kind,
    version.timeout_s,
    version.scaledown_window_s,
    version.max_concurrency,
    version.max_instances,
    (isBuilt ? 'building' : 'pending') satisfies FunctionTemplateState,
    isBuilt ? image.imageId : null,
    isBuilt ? image.jobId : null,
    version.activate,
  ]);
  if (written === undefined)
    throw badRequest(
      `the project has ${BOUNDS.functionsPerProject} functions, which is the most allowed: delete one, or deploy under the name of one`,
      'limit_reached',
    );
  return written;
}
