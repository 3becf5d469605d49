/**
 * HTTP operations of runners on the internal listener, each with its own credential (docs/security.md).
 */
import { Type, type Static } from 'typebox';
import { Uuid } from './platform/fields.ts';

/** The path of the WebSocket that runners dial; see docs/runner-protocol.md. */
export const RUNNER_LINK_PATH = '/internal/runners/link';

/** `POST`, by a machine that becomes a runner, with the join token, its present credential or a permission to join. */
export const RUNNER_JOIN_PATH = '/internal/runners/join';

export const RunnerJoinRequest = Type.Object({
  runner_id: Uuid,
  /** SHA-256 of the credential that the runner has generated, in hexadecimal. */
  credential_sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  /** Shared token of an installation of version 0.1, where this home has one. */
  previous_token: Type.Optional(Type.String({ maxLength: 1024, writeOnly: true })),
});
export type RunnerJoinRequest = Static<typeof RunnerJoinRequest>;

export const RunnerJoinResponse = Type.Object({ runner_id: Type.String() });
export type RunnerJoinResponse = Static<typeof RunnerJoinResponse>;

/** `POST`, by a runner: the key with which it verifies data tokens. */
export const RUNNER_DATA_KEY_PATH = '/internal/runners/data-key';

export const RunnerDataKey = Type.Object({
  /** Name of the key in the header (`kid`) of data tokens. */
  key_id: Type.String(),
  /** base64url. */
  key: Type.String({ writeOnly: true }),
  /** The runner's credential is old: it should renew it. */
  renew: Type.Boolean(),
});
export type RunnerDataKey = Static<typeof RunnerDataKey>;

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
  type: Type.Enum(['image', 'snapshot'] as const),
  parts: Type.Array(ArtifactPart),
});
export type ArtifactRecord = Static<typeof ArtifactRecord>;

/**
 * Data tokens are JWTs, HS256: `aud` is the runner's id, `sub` the sandbox's UUID, `kid` names the runner's key.
 * A token is valid for this long.
 */
export const DATA_TOKEN_TTL_MS = 60_000;
/** How far the clocks of control plane and runner may differ. */
export const DATA_TOKEN_SKEW_MS = 30_000;

export const DELETED_PROJECTS_PATH = '/internal/projects/deleted';
/** Most projects of one request. */
export const DELETED_PROJECTS_MAX = 1_000;

/** `POST`, by a runner: projects of which it has something without an assignment, such as a layer cache of builds. */
export const DeletedProjectsRequest = Type.Object({
  projects: Type.Array(Uuid, { maxItems: DELETED_PROJECTS_MAX }),
});
export const DeletedProjectsResponse = Type.Object({
  deleted: Type.Array(Uuid, { description: 'Those that have been deleted.' }),
});
export type DeletedProjectsResponse = Static<typeof DeletedProjectsResponse>;
