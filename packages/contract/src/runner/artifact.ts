/**
 * The kind `artifact`: an image, a snapshot or a sandbox that does not run on one host, and its copy in the deployment's store. The id is that of
 * the location: one artifact on one host. Content is transferred by HTTP (`wire/internal/artifacts.ts`).
 */
import { Type, type Static } from 'typebox';
import { ArtifactPart, ARTIFACT_PARTS_MAX } from '../wire/internal/artifacts.ts';
import { assignmentOf, reportOf } from './envelope.ts';
import { text, Uuid } from '../wire/platform/fields.ts';

export const ArtifactSpec = Type.Object({
  /** Of a snapshot: the snapshot's id. */
  artifact_id: Uuid,
  /** `sandbox`: captured when it is to be stored, and a snapshot from then on. Only sent to runners with the capability `sandbox-moves`. */
  type: Type.Enum(['image', 'snapshot', 'sandbox'] as const),
  /** Of an image. */
  digest: Type.Optional(text(512)),
  /** The sandbox that is captured. */
  vm_id: Type.Optional(Uuid),
});
export type ArtifactSpec = Static<typeof ArtifactSpec>;

/**
 * `stored`: the host has it, and must upload its parts. `present`: the host must have it; if it does not, it fetches it
 * from the store. `deleted`: the host no longer needs it.
 */
export const ArtifactAssignment = assignmentOf(
  'artifact',
  Type.Enum(['stored', 'present', 'deleted'] as const),
  ArtifactSpec,
);
export type ArtifactAssignment = Static<typeof ArtifactAssignment>;

export const ArtifactDetail = Type.Object({
  /** Why it failed. */
  error: Type.Optional(Type.String()),
  /** With `stored`: all of its parts; each is in the store. */
  parts: Type.Optional(Type.Array(ArtifactPart, { maxItems: ARTIFACT_PARTS_MAX })),
});
export type ArtifactDetail = Static<typeof ArtifactDetail>;

export const ArtifactReport = reportOf(
  'artifact',
  Type.Enum(['stored', 'present', 'deleted', 'failed', 'unsupported'] as const),
  ArtifactDetail,
);
export type ArtifactReport = Static<typeof ArtifactReport>;
