/** The rows of images: writes, reads and deletes. */
import {
  badRequest,
  conflict,
  imageNotFound,
  isUuid,
  newUuid,
  quote,
  type CursorPosition,
  type ImageRecord,
  type ImageStatus,
  type RootSource,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import { RANDOM, type IdGenerator } from '../../platform/idempotency/id-generator.ts';
import { newestFirst } from '../../platform/newest-first.ts';
import { IS_LISTED } from './function-images.ts';
import { BUILT_ROOT } from './built-root.ts';
import { failBuildsOf } from './build-statements.ts';
import { IMAGE_EVENTS } from './transitions.ts';

/** An image with its resolved source. */
export interface NewImage {
  name: string;
  /** As records show it. */
  source: { type: string; [field: string]: unknown };
  /** As runners get it. */
  root: RootSource;
  docker: boolean;
  region: string;
}

/**
 * Image and build job in one statement. An existing name gets the new source and this job, and its builds in progress
 * fail; what it was built to stays until the new build is done. $1 id, $2 project, $3 name, $4 source, $5 docker,
 * $6 region, $7 job, $8 root
 */
const PUT = statement<{ id: string }>(
  'image-put',
  `with image as (
     insert into images as i (id, project_id, name, source, status, docker, region, job_id)
     values ($1, $2, $3, $4::jsonb, 'pending', $5, $6, $7)
     on conflict (project_id, name) where project_id is not null do update
       set source = excluded.source, ${IMAGE_EVENTS.sets('i', 'put')}, docker = excluded.docker, region = excluded.region,
           job_id = excluded.job_id, previous_root = ${BUILT_ROOT('i')}, error = null, updated_at = now()
     returning id
   ), replaced as (
     ${failBuildsOf('image', 'replaced by a newer build of the same name')}
   )
   insert into jobs (id, project_id, kind, status, image_id, payload)
   select $7, $2, 'build', 'queued', id, jsonb_build_object('root', $8::jsonb, 'docker', $5::boolean) from image
   returning image_id as id`,
);

/** The job that an interrupted earlier attempt inserted. $1 job, $2 project */
const MADE = statement<{ id: string }>(
  'image-made',
  'select image_id as id from jobs where id = $1 and project_id = $2',
);

export async function putImage(
  on: Queryable,
  projectId: string,
  image: NewImage,
  ids: IdGenerator = RANDOM,
): Promise<{ imageId: string; jobId: string }> {
  // Always in this order: an earlier attempt with the same seed has generated the same values.
  const [id, jobId] = [ids.uuid(), ids.uuid()];
  if (ids.retried) {
    const made = await queryOne(on, MADE, [jobId, projectId]);
    if (made !== undefined) return { imageId: made.id, jobId };
  }
  const [row] = await queryAll(on, PUT, [
    id,
    projectId,
    image.name,
    JSON.stringify(image.source),
    image.docker,
    image.region,
    jobId,
    JSON.stringify(image.root),
  ]);
  if (row === undefined) throw new Error('the image was not written');
  return { imageId: row.id, jobId };
}

interface ImageRow {
  id: string;
  name: string;
  source: { type: string };
  status: ImageStatus;
  manifest_name: string | null;
  layer_count: number | null;
  /** A bigint, which the driver gives as text. */
  bytes: string | null;
  docker: boolean;
  error: string | null;
  job_id: string;
  region: string | null;
  created_at: Date;
  updated_at: Date;
  built_at: Date | null;
}

const COLUMNS =
  'id, name, source, status, manifest_name, layer_count, bytes, docker, error, job_id, region, created_at, updated_at, built_at';
/** Built-in images that the project has replaced are hidden. $1 project */
const VISIBLE = `(project_id = $1 and ${IS_LISTED('i')}) or (project_id is null and not exists (
  select 1 from images mine where mine.project_id = $1 and mine.name = i.name))`;

const LIST = newestFirst<ImageRow>('image-list', {
  columns: COLUMNS,
  from: 'images i',
  where: VISIBLE,
  parameters: 1,
});

/** $1 project, $2 id (null: none), $3 name */
const FIND = statement<ImageRow & { builtin: boolean }>(
  'image-find',
  `select ${COLUMNS}, project_id is null as builtin from images i where (id = $2 or name = $3) and (${VISIBLE})`,
);

export interface ImagePage {
  images: ImageRecord[];
  /** The cursor's position. */
  last: CursorPosition | null;
}

export async function listImages(
  database: Database,
  projectId: string,
  limit: number,
  after: CursorPosition | null,
): Promise<ImagePage> {
  const { rows, last } = await LIST.page(database.pool, [projectId], limit, after);
  return { images: rows.map(toRecord), last };
}

/** @throws 404; 400 for a text that is the id of one image and the name of another */
export async function getImage(
  database: Database,
  projectId: string,
  idOrName: string,
): Promise<ImageRecord> {
  return toRecord(await findImage(database, projectId, idOrName));
}

async function findImage(
  database: Database,
  projectId: string,
  idOrName: string,
): Promise<ImageRow & { builtin: boolean }> {
  const found = await queryAll(database.pool, FIND, [
    projectId,
    isUuid(idOrName) ? idOrName : null,
    idOrName,
  ]);
  if (found.length > 1)
    throw badRequest(
      `${quote(idOrName)} is the id of one image and the name of another`,
      'ambiguous_reference',
    );
  const [image] = found;
  if (image === undefined) throw imageNotFound(idOrName);
  return image;
}

/** Its jobs keep their records; those that have not ended fail. $1 id, $2 project */
const DELETE = statement<{ id: string }>(
  'image-delete',
  `with gone as (
     delete from images where id = $1 and project_id = $2 returning id
   ), cancelled as (
     ${failBuildsOf('gone', 'its image was deleted')}
   )
   select id from gone`,
);

/** @throws 404, 400 like `getImage`; 409 for a built-in image */
export async function deleteImage(database: Database, projectId: string, idOrName: string): Promise<void> {
  const { id, name, builtin } = await findImage(database, projectId, idOrName);
  if (builtin) throw conflict(`image ${quote(name)} is built in and cannot be deleted`, 'built_in');
  // Of two concurrent deletes one finds nothing to delete.
  if ((await queryOne(database.pool, DELETE, [id, projectId])) === undefined) throw imageNotFound(idOrName);
}

function toRecord(row: ImageRow): ImageRecord {
  return {
    id: row.id,
    name: row.name,
    source: row.source,
    status: row.status,
    docker: row.docker,
    ...(row.manifest_name === null ? {} : { manifest_name: row.manifest_name }),
    ...(row.layer_count === null ? {} : { layer_count: row.layer_count }),
    ...(row.bytes === null ? {} : { bytes: Number(row.bytes) }),
    error: row.error,
    // The builds of built-in images are jobs of no project.
    ...(row.source.type === 'builtin' ? {} : { job_id: row.job_id }),
    ...(row.region === null ? {} : { region: row.region }),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    ...(row.built_at === null ? {} : { built_at: row.built_at.toISOString() }),
  };
}

/** Registers the built-in images and queues builds of new ones. */
export async function ensureBuiltinImages(on: Queryable, names: readonly string[]): Promise<void> {
  for (const name of names) {
    await on.query(
      `with image as (
         insert into images (id, project_id, name, source, status, job_id)
         values ($1, null, $2, jsonb_build_object('type', 'builtin', 'name', $2::text), 'pending', $3)
         on conflict (name) where project_id is null do nothing returning id
       )
       insert into jobs (id, kind, status, image_id, payload)
       select $3, 'build', 'queued', id,
              jsonb_build_object('root', jsonb_build_object('type', 'builtin', 'name', $2::text), 'docker', false)
         from image`,
      [newUuid(), name, newUuid()],
    );
  }
}
