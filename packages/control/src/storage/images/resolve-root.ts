/** What a sandbox boots from: the image of a create request, resolved. */
import {
  conflict,
  imageNotFound,
  quote,
  stillReplicating,
  type ImageSource,
  type ImageStatus,
  type RootSource,
} from '@releap/contract';
import { createRowReader, statement, type Queryable } from '@releap/database';
import type { Artifacts } from '../artifacts/artifacts.ts';
import { BUILT_ROOT } from './built-root.ts';

interface NamedImage {
  source: { type: string };
  docker: boolean;
  status: ImageStatus;
  error: string | null;
  built: RootSource | null;
}

/** The project's own image of this name wins over the built-in one. */
const BY_NAME = statement<NamedImage & { n: number }>(
  'image-by-name',
  `select key.n, image.*
     from jsonb_to_recordset($1::jsonb) as key(n integer, project uuid, name text)
    cross join lateral (
      select source, docker, status, error, ${BUILT_ROOT('images')} as built from images
       where name = key.name and (project_id = key.project or project_id is null)
       order by project_id nulls last limit 1
    ) image`,
);

export type ReadImage = (projectId: string, name: string) => Promise<NamedImage | undefined>;

export function createImageReader(on: Queryable): ReadImage {
  const read = createRowReader<{ project: string; name: string }, NamedImage>(on, BY_NAME);
  return (project, name) => read({ project, name });
}

export interface ResolvedRoot {
  root: RootSource;
  /** The requested image. */
  imageRef: string;
}

/** `image_ref` of what is built from a Dockerfile of its own. */
export const DOCKERFILE_REF = 'dockerfile';

/**
 * The root file system source that a runner boots. A registry image that is still being built for the first time is
 * accepted: the host pulls it on demand.
 * @throws 404 for a name that neither the project nor the service has, 409 for an image without anything to boot
 */
export async function resolveRoot(
  readImage: ReadImage,
  projectId: string,
  source: ImageSource,
): Promise<ResolvedRoot> {
  switch (source.type) {
    case 'registry':
      return { root: { type: 'registry', ref: source.ref }, imageRef: source.ref };
    case 'dockerfile': {
      const { dockerfile: text, docker = false } = source;
      return { root: dockerfileRoot(projectId, { dockerfile: { text }, docker }), imageRef: DOCKERFILE_REF };
    }
    case 'named':
      break;
    default:
      throw new Error(`an image of type ${source.type} must be refused before`);
  }
  const image = await readImage(projectId, source.name);
  if (image === undefined) throw imageNotFound(source.name);
  if (image.built !== null) return { root: image.built, imageRef: source.name };
  const name = quote(source.name);
  if (image.status === 'failed') {
    const [reason] = (image.error ?? 'no reason was given').split('\n', 1);
    throw conflict(`image ${name} could not be built: ${reason}. Post it again`, 'image_failed');
  }
  if (image.source.type === 'dockerfile' || image.docker)
    throw conflict(
      `image ${name} is still being built for the first time: try again when its job is done`,
      'image_not_ready',
    );
  return { root: image.source as RootSource, imageRef: source.name };
}

/** @throws 409 when no host of the region can have it yet */
export async function assertAvailable(
  artifacts: Pick<Artifacts, 'awaitedImage'>,
  projectId: string,
  { root, imageRef }: ResolvedRoot,
  region: string,
): Promise<void> {
  if (root.type !== 'stored') return;
  const waits = await artifacts.awaitedImage(projectId, root.digest, region);
  if (waits !== undefined)
    throw stillReplicating(`image ${quote(imageRef)}`, region, waits.trouble, 'image_not_ready');
}

type DockerfileRoot = Extract<RootSource, { type: 'dockerfile' }>;

/** A root that is built from a Dockerfile, as it is stored: credentials are added when it is assigned. */
export function dockerfileRoot(
  projectId: string,
  build: Pick<DockerfileRoot, 'dockerfile' | 'context' | 'docker'>,
): DockerfileRoot {
  return { type: 'dockerfile', project_id: projectId, ...build, credentials: [] };
}
