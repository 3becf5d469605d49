/** The operations with which runners read and write the store. */
import {
  ApiError,
  ARTIFACT_PARTS_MAX,
  badRequest,
  conflict,
  internalOperations,
  notFound,
  type MissingBlobsResponse,
} from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import type { BlobAccess, Upload } from './blob-access.ts';
import type { VolumeUploads } from '../volumes/uploads.ts';
import type { BlobStore } from './blob-store.ts';
import type { Stores } from './stores.ts';

export interface BlobRoutes {
  /** That of the deployment. */
  blobs: BlobStore;
  stores: Pick<Stores, 'ofRunner' | 'holding'>;
  access: BlobAccess;
  volumes: Pick<VolumeUploads, 'upload' | 'uploaded'>;
  /** A runner waits for this artifact to be in the store of its region. */
  replicate: (artifactId: string, region: string) => Promise<void>;
}

export function blobRoutes(
  { runner: plane }: Planes,
  { blobs, stores, access, volumes, replicate }: BlobRoutes,
): void {
  const uploadOf = async (runnerId: string, locationId: string): Promise<Upload> => {
    const upload = await access.upload(runnerId, locationId);
    if (upload === undefined)
      throw notFound(
        `this runner is not to store an artifact at the location ${locationId}`,
        'artifact_not_found',
      );
    return upload;
  };

  const checkedUpload = async (runnerId: string, locationId: string): Promise<Upload> => {
    const allowed = await uploadOf(runnerId, locationId);
    if (allowed.blobs >= 2 * ARTIFACT_PARTS_MAX)
      throw new ApiError(409, `more than ${2 * ARTIFACT_PARTS_MAX} blobs were uploaded for one artifact`);
    return allowed;
  };

  plane.operation(internalOperations.getBlob, async ({ params: { digest }, runner, reply, abortSignal }) => {
    // The same response for a blob that does not exist: a runner learns nothing of what others have.
    const found = (await access.mayRead(runner.runnerId, digest))
      ? await (await stores.holding(runner.runnerId, digest)).blobs.get(digest, abortSignal())
      : undefined;
    if (found === undefined)
      throw notFound(
        `nothing that is assigned to this runner names the blob ${digest}`,
        'artifact_not_found',
      );
    reply.header('content-length', found.bytes);
    return found.content;
  });

  plane.operation(
    internalOperations.putBlob,
    async ({ params: { digest }, query: { location, volume }, runner, upload, abortSignal }) => {
      if ((location === undefined) === (volume === undefined))
        throw badRequest('name a location or a volume, and not both');
      const { runnerId } = runner;
      const { maxBytes } =
        volume === undefined
          ? await checkedUpload(runnerId, location ?? '')
          : await volumes.upload(runnerId, volume);
      if (upload?.kind !== 'raw') throw badRequest('the body must be application/octet-stream');
      // Volumes are seen in all regions.
      const store = volume === undefined ? (await stores.ofRunner(runnerId)).blobs : blobs;
      await store.put(upload.stream, { digest, maxBytes, signal: abortSignal() });
      if (volume === undefined) await access.uploaded(location ?? '', digest);
      else await volumes.uploaded(runnerId, volume, digest);
    },
  );

  plane.operation(
    internalOperations.listMissingBlobs,
    async ({ params, body, runner }): Promise<MissingBlobsResponse> => {
      const { projectId } = await uploadOf(runner.runnerId, params.id);
      const { id: storeId } = await stores.ofRunner(runner.runnerId);
      const present = await access.present(body.digests, params.id, projectId, storeId);
      return { missing: body.digests.filter((digest) => !present.has(digest)) };
    },
  );

  plane.operation(internalOperations.getArtifact, async ({ params: { ref }, runner }) => {
    const found = await access.artifact(runner.runnerId, ref);
    if (found === undefined)
      throw notFound(
        `nothing that is assigned to this runner needs the artifact ${ref}`,
        'artifact_not_found',
      );
    const { id, type, region, parts } = found;
    if (parts !== undefined) return { id, type, parts };
    await replicate(id, region);
    throw conflict(`the artifact ${ref} is not in the store of its region yet`, 'image_not_ready');
  });
}
