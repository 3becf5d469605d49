/** How runners read and store artifacts (images and disk snapshots) and their parts. */
import { Type, type Static } from 'typebox';
import { Uuid } from '../platform/fields.ts';
import type { Operation } from '../platform/operation.ts';

/** By a runner. `GET`: content of the store that something assigned to it names. `PUT`: content that it must store. */
export const BLOB_PATH = '/internal/blobs/:digest';

/** Digest of the content of a blob. */
export const BlobDigest = Type.String({ pattern: '^sha256:[0-9a-f]{64}$' });
export const BlobParams = Type.Object({ digest: BlobDigest });
/** What the blob is a part of: an artifact at a location, or a volume. */
export const BlobUploadQuery = Type.Object({ location: Type.Optional(Uuid), volume: Type.Optional(Uuid) });

/** One file of an artifact. */
export const ArtifactPart = Type.Object({
  name: Type.String({ pattern: '^[a-z0-9][a-z0-9.-]{0,63}$' }),
  digest: BlobDigest,
  bytes: Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
});
export type ArtifactPart = Static<typeof ArtifactPart>;
/** A disk has at most 96 layers, and a few files beside them. */
export const ARTIFACT_PARTS_MAX = 128;

/** `POST`, by a runner: which blobs of an artifact it must upload. */
export const MISSING_BLOBS_PATH = '/internal/artifact-locations/:id/missing';
export const LocationParams = Type.Object({ id: Uuid });
export const MissingBlobsRequest = Type.Object({
  digests: Type.Array(BlobDigest, { maxItems: ARTIFACT_PARTS_MAX }),
});
export const MissingBlobsResponse = Type.Object({ missing: Type.Array(BlobDigest) });
export type MissingBlobsResponse = Static<typeof MissingBlobsResponse>;

/** `GET`, by a runner: the parts of an artifact, by its id, or by the digest of an image. */
export const ARTIFACT_PATH = '/internal/artifacts/:ref';
export const ArtifactParams = Type.Object({ ref: Type.Union([Uuid, BlobDigest]) });
export const ArtifactRecord = Type.Object({
  id: Uuid,
  type: Type.Enum(['image', 'snapshot', 'sandbox'] as const),
  parts: Type.Array(ArtifactPart),
});
export type ArtifactRecord = Static<typeof ArtifactRecord>;

export const internalArtifactOperations = {
  getBlob: {
    method: 'GET',
    path: BLOB_PATH,
    tag: 'Runner',
    summary: 'Read content of the store',
    description: 'Only what something that is assigned to this runner names.',
    security: 'runner',
    params: BlobParams,
    success: {
      status: 200,
      response: {
        description: 'The content.',
        schema: Type.String(),
        contentType: 'application/octet-stream',
      },
    },
    errors: {
      404: 'Nothing that is assigned to this runner names this blob, or the store does not have it.',
      503: 'The store cannot be reached.',
    },
  },
  putBlob: {
    method: 'PUT',
    path: BLOB_PATH,
    tag: 'Runner',
    summary: 'Store a part of an artifact or of a volume',
    description:
      'Only while the runner is to store an artifact at this location, or has a copy of this volume. Idempotent.',
    security: 'runner',
    params: BlobParams,
    query: BlobUploadQuery,
    consumes: ['application/octet-stream'],
    upload: { bytes: Number.MAX_SAFE_INTEGER },
    success: { status: 204, response: { description: 'Stored.' } },
    errors: {
      400: 'The content has another digest, or is larger than a part can be; neither or both of `location` and `volume` are named.',
      404: 'This runner is not to store an artifact at this location, or has no copy of the volume.',
      503: 'The store cannot be reached, or is full.',
    },
  },
  listMissingBlobs: {
    method: 'POST',
    path: MISSING_BLOBS_PATH,
    tag: 'Runner',
    summary: 'List the parts of an artifact that are not in the store',
    description:
      'A part that the store has is listed too, unless it belongs to an artifact of the same project.',
    security: 'runner',
    params: LocationParams,
    body: MissingBlobsRequest,
    success: {
      status: 200,
      response: { description: 'What must be uploaded.', schema: MissingBlobsResponse },
    },
    errors: { 404: 'This runner is not to store an artifact at this location.' },
  },
  getArtifact: {
    method: 'GET',
    path: ARTIFACT_PATH,
    tag: 'Runner',
    summary: 'Read the parts of an artifact',
    security: 'runner',
    params: ArtifactParams,
    success: { status: 200, response: { description: 'The parts.', schema: ArtifactRecord } },
    errors: {
      404: 'Nothing that is assigned to this runner needs this artifact.',
      409: 'It is not in the store yet.',
    },
  },
} as const satisfies Record<string, Operation>;
