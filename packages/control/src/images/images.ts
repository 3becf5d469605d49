import {
  conflict,
  imageNotFound,
  quote,
  newUuid,
  type CursorPosition,
  type ImageRecord,
  type ImageSource,
  type ImageStatus,
  type ResolvedImage,
  type RootSource,
} from '@releap/contract';
import {
  queryAll,
  createRowReader,
  queryOne,
  statement,
  type Database,
  type Queryable,
} from '@releap/database';
import { RANDOM, type IdGenerator } from '../idempotency/id-generator.ts';
import { newestFirst } from '../newest-first.ts';

interface ImageRow {
  id: string;
  name: string;
  source: { type: string };
  status: ImageStatus;
  manifest_name: string | null;
  layer_count: number | null;
  docker: boolean;
  error: string | null;
}

type NamedImage = Pick<ImageRow, 'source' | 'status' | 'manifest_name' | 'error'> & { source: RootSource };

/** The project's own image of this name wins over the built-in one. */
const BY_NAME = statement<NamedImage & { n: number }>(
  'image-by-name',
  `select key.n, image.*
     from jsonb_to_recordset($1::jsonb) as key(n integer, project uuid, name text)
    cross join lateral (
      select source, status, manifest_name, error from images
       where name = key.name and (project_id = key.project or project_id is null)
       order by project_id nulls last limit 1
    ) image`,
);

export type ReadImage = (projectId: string, name: string) => Promise<NamedImage | undefined>;

export function createImageReader(on: Queryable): ReadImage {
  const read = createRowReader<{ project: string; name: string }, NamedImage>(on, BY_NAME);
  return (project, name) => read({ project, name });
}

/** Built-in images that the project has replaced are hidden. $1 project */
const LIST = newestFirst<ImageRow>('image-list', {
  columns: 'id, name, source, status, manifest_name, layer_count, docker, error',
  from: 'images i',
  where: `project_id = $1 or (project_id is null and not exists (
            select 1 from images mine where mine.project_id = $1 and mine.name = i.name))`,
  parameters: 1,
});

/**
 * Image and build job in one statement. An existing name gets the new source and this job, and its builds in progress
 * fail. $1 id, $2 project, $3 name, $4 source, $5 docker, $6 region, $7 job
 */
const PUT = statement<{ id: string }>(
  'image-put',
  `with image as (
     insert into images (id, project_id, name, source, status, docker, region, job_id)
     values ($1, $2, $3, $4::jsonb, 'pending', $5, $6, $7)
     on conflict (project_id, name) where project_id is not null do update
       set source = excluded.source, status = 'pending', docker = excluded.docker, region = excluded.region,
           job_id = excluded.job_id, manifest_name = null, layer_count = null, error = null, updated_at = now()
     returning id
   ), replaced as (
     update jobs j set status = 'failed', error = 'replaced by a newer build of the same name',
            finished_at = now(), updated_at = now(), lease_until = null
       from image i where j.image_id = i.id and j.status in ('queued', 'running')
   )
   insert into jobs (id, project_id, kind, status, image_id, payload)
   select $7, $2, 'build', 'queued', id, jsonb_build_object('root', $4::jsonb, 'docker', $5::boolean) from image
   returning image_id as id`,
);

/** The job that an interrupted earlier attempt inserted. $1 job, $2 project */
const MADE = statement<{ id: string }>(
  'image-made',
  'select image_id as id from jobs where id = $1 and project_id = $2',
);

export interface ResolvedRoot {
  root: RootSource;
  /** The requested image. */
  imageRef: string;
}

const DIGEST = /^sha256:[0-9a-f]{64}$/;

/**
 * The root file system source that a runner boots. A named image that is still being built is accepted: the host
 * builds its root file system on demand.
 * @throws 404 for a name that neither the project nor the service has, 409 for an image whose build failed.
 */
export async function resolveRoot(
  readImage: ReadImage,
  projectId: string,
  source: ImageSource,
): Promise<ResolvedRoot> {
  if (source.type === 'registry')
    return { root: { type: 'registry', ref: source.ref }, imageRef: source.ref };
  if (source.type !== 'named') throw new Error(`an image of type ${source.type} must be refused before`);
  const image = await readImage(projectId, source.name);
  if (image === undefined) throw imageNotFound(source.name);
  if (image.status === 'failed') {
    throw conflict(
      `image ${quote(source.name)} could not be built: ${image.error ?? 'no reason was given'}. Post it again`,
    );
  }
  const root: RootSource =
    image.source.type === 'registry' && image.manifest_name !== null && DIGEST.test(image.manifest_name)
      ? { ...image.source, digest: image.manifest_name }
      : image.source;
  return { root, imageRef: source.name };
}

export async function putImage(
  database: Database,
  projectId: string,
  image: ResolvedImage,
  region: string,
  ids: IdGenerator = RANDOM,
): Promise<{ imageId: string; jobId: string }> {
  // Always in this order: an earlier attempt with the same seed has generated the same values.
  const [id, jobId] = [ids.uuid(), ids.uuid()];
  if (ids.retried) {
    const made = await queryOne(database.pool, MADE, [jobId, projectId]);
    if (made !== undefined) return { imageId: made.id, jobId };
  }
  const [row] = await queryAll(database.pool, PUT, [
    id,
    projectId,
    image.name,
    JSON.stringify(image.source),
    image.docker,
    region,
    jobId,
  ]);
  if (row === undefined) throw new Error('the image was not written');
  return { imageId: row.id, jobId };
}

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
  return {
    images: rows.map((row) => ({
      id: row.id,
      name: row.name,
      source: row.source,
      status: row.status,
      docker: row.docker,
      ...(row.manifest_name === null ? {} : { manifest_name: row.manifest_name }),
      ...(row.layer_count === null ? {} : { layer_count: row.layer_count }),
      error: row.error,
    })),
    last,
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
