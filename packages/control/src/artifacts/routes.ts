import { internalOperations, notFound } from '@releap/contract';
import type { Planes } from '../http/planes.ts';
import type { MayRead } from './blob-access.ts';
import type { BlobStore } from './blob-store.ts';

export interface BlobRoutes {
  blobs: BlobStore;
  mayRead: MayRead;
}

export function blobRoutes({ runner: plane }: Planes, { blobs, mayRead }: BlobRoutes): void {
  plane.operation(internalOperations.getBlob, async ({ params: { digest }, runner, reply, abortSignal }) => {
    // The same response for a blob that does not exist: a runner learns nothing of what others have.
    const found = (await mayRead(runner.runnerId, digest))
      ? await blobs.get(digest, abortSignal())
      : undefined;
    if (found === undefined)
      throw notFound(`nothing that is assigned to this runner names the blob ${digest}`);
    reply.header('content-length', found.bytes);
    return found.content;
  });
}
