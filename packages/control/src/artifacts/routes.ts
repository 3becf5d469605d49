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
import type { Planes } from '../http/planes.ts';
import type { BlobAccess, Upload } from './blob-access.ts';
import type { BlobStore } from './blob-store.ts';

export interface BlobRoutes {
  blobs: BlobStore;
  access: BlobAccess;
  /** A runner waits for this artifact to be in the store. */
  want: (artifactId: string) => Promise<void>;
}

export function blobRoutes({ runner: plane }: Planes, { blobs, access, want }: BlobRoutes): void {
  const uploadOf = async (runnerId: string, locationId: string): Promise<Upload> => {
    const upload = await access.upload(runnerId, locationId);
    if (upload === undefined)
      throw notFound(`this runner is not to store an artifact at the location ${locationId}`);
    return upload;
  };

  plane.operation(internalOperations.getBlob, async ({ params: { digest }, runner, reply, abortSignal }) => {
    // The same response for a blob that does not exist: a runner learns nothing of what others have.
    const found = (await access.mayRead(runner.runnerId, digest))
      ? await blobs.get(digest, abortSignal())
      : undefined;
    if (found === undefined)
      throw notFound(`nothing that is assigned to this runner names the blob ${digest}`);
    reply.header('content-length', found.bytes);
    return found.content;
  });

  plane.operation(
    internalOperations.putBlob,
    async ({ params: { digest }, query: { location }, runner, upload, abortSignal }) => {
      const allowed = await uploadOf(runner.runnerId, location);
      if (upload?.kind !== 'raw') throw badRequest('the body must be application/octet-stream');
      if (allowed.blobs >= 2 * ARTIFACT_PARTS_MAX)
        throw new ApiError(409, `more than ${2 * ARTIFACT_PARTS_MAX} blobs were uploaded for one artifact`);
      await blobs.put(upload.stream, { digest, maxBytes: allowed.maxBytes, signal: abortSignal() });
      await access.uploaded(location, digest);
    },
  );

  plane.operation(
    internalOperations.listMissingBlobs,
    async ({ params, body, runner }): Promise<MissingBlobsResponse> => {
      const { projectId } = await uploadOf(runner.runnerId, params.id);
      const present = await access.present(body.digests, params.id, projectId);
      return { missing: body.digests.filter((digest) => !present.has(digest)) };
    },
  );

  plane.operation(internalOperations.getArtifact, async ({ params: { ref }, runner }) => {
    const found = await access.artifact(runner.runnerId, ref);
    if (found === undefined)
      throw notFound(`nothing that is assigned to this runner needs the artifact ${ref}`);
    const { id, type, parts } = found;
    if (parts !== undefined) return { id, type, parts };
    await want(id);
    throw conflict(`the artifact ${ref} is not in the store yet`);
  });
}
