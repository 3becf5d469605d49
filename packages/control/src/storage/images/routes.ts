import {
  clampLimit,
  cursorPosition,
  IMAGE_CURSORS,
  nextCursor,
  operations,
  resolveImageCreate,
} from '@releap/contract';
import type { ImageCreateRequest, ImageCreateResponse, ImageList } from '@releap/contract';
import type { Database } from '@releap/database';
import type { BlobStore } from '../artifacts/blob-store.ts';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { Planes } from '../../platform/http/planes.ts';
import type { Upload } from '../../platform/http/uploads.ts';
import type { IdGenerator } from '../../platform/idempotency/id-generator.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { BuildQueue } from './build-queue.ts';
import { readImageForm } from './context-upload.ts';
import { deleteImage, getImage, listImages, putImage, type NewImage } from './images.ts';
import { dockerfileRoot } from './resolve-root.ts';

export interface ImageRoutes {
  database: Database;
  blobs: BlobStore;
  limits: { buildContextBytes: number };
  regions: Regions;
  scheduler: RegionChoice;
  builds: BuildQueue;
  billing: Pick<Billing, 'requireCredits'>;
}

/** Chooses among the regions of a global one. */
export interface RegionChoice {
  regionWithMostCapacity: (
    need: typeof BUILD_NEED & { isBuilt: boolean },
  ) => (regions: readonly string[]) => Promise<string>;
}

/** A build needs a region with a ready host, and no capacity of it. */
export const BUILD_NEED = {
  arch: null,
  cpu: 0,
  mem_mib: 0,
  disk_mib: 0,
  gpus: 0,
  requiredRunnerId: null,
  overcommitted: false,
};

/** A create before its region is resolved. */
interface Requested extends Omit<NewImage, 'region'> {
  /** Null: the default. */
  region: string | null;
}

export function imageRoutes(
  { workload }: Planes,
  { database, blobs, limits, regions, scheduler, builds, billing }: ImageRoutes,
): void {
  workload.operation(
    operations.createImage,
    async ({ body, upload, principal, once, abortSignal }): Promise<ImageCreateResponse> => {
      const requested =
        upload === null ? fromJson(principal, body) : await fromForm(principal, upload, abortSignal());
      return await once(requested, (ids) => create(principal, requested, ids));
    },
  );

  workload.operation(operations.listImages, async ({ query, principal }): Promise<ImageList> => {
    const after = cursorPosition(IMAGE_CURSORS, query.cursor);
    const { images, last } = await listImages(database, principal.projectId, clampLimit(query.limit), after);
    return { images, next_cursor: nextCursor(IMAGE_CURSORS, last) };
  });

  workload.operation(operations.getImage, ({ params, principal }) =>
    getImage(database, principal.projectId, params.id_or_name),
  );

  workload.operation(operations.deleteImage, async ({ params, principal }) => {
    await deleteImage(database, principal.projectId, params.id_or_name);
    builds.kick();
  });

  async function create(
    principal: Principal,
    requested: Requested,
    ids: IdGenerator,
  ): Promise<ImageCreateResponse> {
    await billing.requireCredits(principal.orgId);
    const region = await regions.resolve(
      requested.region,
      principal,
      scheduler.regionWithMostCapacity({ ...BUILD_NEED, isBuilt: requested.root.type === 'dockerfile' }),
    );
    const { imageId, jobId } = await putImage(
      database.pool,
      principal.projectId,
      { ...requested, region },
      ids,
    );
    builds.kick();
    return { image_id: imageId, job_id: jobId, name: requested.name, status: 'pending', region };
  }

  function fromJson({ projectId }: Principal, body: ImageCreateRequest | undefined): Requested {
    const { name, source, docker, region } = resolveImageCreate(body as ImageCreateRequest);
    if (source.type === 'registry' && !docker) return { name, source, root: source, docker, region };
    // What is prepared for Docker is another image than the registry's.
    const text = source.type === 'registry' ? `FROM ${source.ref}\n` : source.dockerfile;
    const root = dockerfileRoot(projectId, { dockerfile: { text }, docker });
    return { name, source, root, docker, region };
  }

  async function fromForm({ projectId }: Principal, upload: Upload, signal: AbortSignal): Promise<Requested> {
    if (upload.kind !== 'form') throw new Error(`an upload of kind ${upload.kind} must be refused before`);
    const { name, dockerfile, docker, region, context } = await readImageForm(upload, {
      blobs,
      maxBytes: limits.buildContextBytes,
      signal,
    });
    return {
      name,
      source: { type: 'dockerfile', path: dockerfile, context_bytes: context.bytes },
      root: dockerfileRoot(projectId, { dockerfile: { path: dockerfile }, context, docker }),
      docker,
      region,
    };
  }
}
