/** Creates snapshots of the facade: an image from a registry, or from the text of a Dockerfile, built in a build VM. */
import { createHash } from 'node:crypto';
import {
  badRequest,
  BOUNDS,
  COMPAT_DEFAULTS,
  COMPAT_LIMITS,
  conflict,
  isImageName,
  parseImageSource,
  quote,
  resolveResources,
  type CompatSnapshotCreate,
  type PlatformLimits,
} from '@releap/contract';
import { queryOne, statement, type Database, type Queryable } from '@releap/database';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { BuildQueue } from '../../storage/images/build-queue.ts';
import { BUILD_NEED } from '../../storage/images/routes.ts';
import { putImage, type NewImage } from '../../storage/images/images.ts';
import { dockerfileRoot } from '../../storage/images/resolve-root.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { Scheduler } from '../../compute/scheduler/scheduler.ts';
import { toRegion } from './create-request.ts';
import { notSupported } from './errors.ts';
import { checkContext, fromAlone } from './source.ts';

export interface CompatSnapshotContext {
  database: Database;
  regions: Regions;
  scheduler: Scheduler;
  builds: BuildQueue;
  billing: Pick<Billing, 'requireCredits'>;
  platform: PlatformLimits;
}

/** Creates of one name wait for each other. $1 project and name */
const LOCK = statement('compat-snapshot-lock', 'select pg_advisory_xact_lock(hashtextextended($1, 0))');

/** Whether something that a create may name has the name, or the image name. $1 project, $2 name, $3 image name */
const TAKEN = statement(
  'compat-snapshot-taken',
  `select 1 from compat_snapshots where project_id = $1 and name = $2
   union all select 1 from images where (project_id = $1 or project_id is null) and name = any(array[$2, $3])
   union all select 1 from snapshots where project_id = $1 and name = $2 and status <> 'deleted' limit 1`,
);

const INSERT = statement(
  'compat-snapshot-insert',
  `insert into compat_snapshots (image_id, project_id, name, image_name, entrypoint, cpu, memory, disk)
   values ($1, $2, $3, $4, $5::jsonb, $6, $7, $8)`,
);

/** @returns its id. @throws 400, 402, 409 when the name is taken, 501 */
export async function createSnapshot(
  { billing, database, regions, scheduler, builds, platform }: CompatSnapshotContext,
  principal: Principal,
  body: CompatSnapshotCreate,
): Promise<string> {
  if (body.gpu || (body.gpuType ?? []).length > 0)
    throw notSupported('snapshot create with GPUs', ': leave out gpu and gpuType');
  // No sandbox could start with more cores.
  if (body.cpu) resolveResources({ mode: 'dedicated', cpu: body.cpu }, platform);
  const { projectId } = principal;
  const source = sourceOf(projectId, body);
  await billing.requireCredits(principal.orgId);
  const region = await regions.resolve(
    toRegion(body.regionId) ?? null,
    principal,
    scheduler.regionWithMostCapacity({ ...BUILD_NEED, isBuilt: source.root.type === 'dockerfile' }),
  );
  const { name } = body;
  const image = { name: imageNameOf(name), ...source, docker: false, region };
  const id = await database.transaction((client) => insert(client, projectId, body, image));
  builds.kick();
  return id;
}

async function insert(
  on: Queryable,
  projectId: string,
  { name, imageName, entrypoint, cpu, memory, disk }: CompatSnapshotCreate,
  image: NewImage,
): Promise<string> {
  await queryOne(on, LOCK, [`${projectId} ${name}`]);
  if ((await queryOne(on, TAKEN, [projectId, name, image.name])) !== undefined)
    throw conflict(
      `a snapshot or image with the name ${quote(name)} already exists: choose another name, or delete that one`,
      'name_exists',
    );
  const { imageId } = await putImage(on, projectId, image);
  await queryOne(on, INSERT, [
    imageId,
    projectId,
    name,
    imageName ?? null,
    entrypoint === undefined ? null : JSON.stringify(entrypoint),
    cpu || COMPAT_DEFAULTS.cpu,
    memory || COMPAT_DEFAULTS.memoryGib,
    disk || COMPAT_DEFAULTS.diskGib,
  ]);
  return imageId;
}

function sourceOf(projectId: string, body: CompatSnapshotCreate): Pick<NewImage, 'source' | 'root'> {
  const { buildInfo } = body;
  const entrypoint = checkEntrypoint(body.entrypoint ?? []);
  if (buildInfo !== undefined && body.imageName)
    throw badRequest('imageName and buildInfo exclude each other: send one of them');
  if (buildInfo === undefined && !body.imageName)
    throw badRequest('imageName or buildInfo is required: the reference of an image, or a Dockerfile');
  checkContext(buildInfo?.contextHashes);
  const ref =
    buildInfo === undefined ? checkReference(body.imageName ?? '') : fromAlone(buildInfo.dockerfileContent);
  if (ref !== undefined && entrypoint.length === 0)
    return { source: { type: 'registry', ref }, root: { type: 'registry', ref } };
  // Another entrypoint is another image: one instruction more.
  const lines = [
    buildInfo?.dockerfileContent.trimEnd() ?? `FROM ${ref ?? ''}`,
    ...(entrypoint.length === 0 ? [] : [`ENTRYPOINT ${JSON.stringify(entrypoint)}`]),
  ];
  const dockerfile = `${lines.join('\n')}\n`;
  return {
    source: { type: 'dockerfile', dockerfile },
    root: dockerfileRoot(projectId, { dockerfile: { text: dockerfile }, docker: false }),
  };
}

function checkReference(ref: string): string {
  parseImageSource({ type: 'registry', ref }, 'imageName');
  return ref;
}

function checkEntrypoint(words: readonly string[]): readonly string[] {
  const chars = words.reduce((sum, word) => sum + word.length, 0);
  if (chars > COMPAT_LIMITS.entrypointChars)
    throw badRequest(
      `entrypoint has ${chars} characters; at most ${COMPAT_LIMITS.entrypointChars} are allowed`,
    );
  return words;
}

/** The image's name: that of the snapshot if an image may have it, else one that is derived of it. */
function imageNameOf(name: string): string {
  if (isImageName(name)) return name;
  const digest = createHash('sha256').update(name).digest('hex').slice(0, 12);
  const readable = name.replaceAll(/[^A-Za-z0-9._-]+/g, '-').replace(/^[^A-Za-z0-9]+/, '');
  return `${readable.slice(0, BOUNDS.imageNameChars - digest.length - 1) || 'snapshot'}-${digest}`;
}
