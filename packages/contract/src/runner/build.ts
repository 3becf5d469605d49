/** The kind `build`: one attempt to build an image. The id is the job's; the generation is the attempt, the fencing token. */
import { Type, type Static } from 'typebox';
import { assignmentOf, reportOf } from './envelope.ts';
import { Count, text, Uuid } from './fields.ts';
import { RootSource } from './source.ts';

export const BuildSpec = Type.Object({ image_id: Uuid, root: RootSource, docker: Type.Boolean() });
export type BuildSpec = Static<typeof BuildSpec>;

/**
 * `done`: the image must be built. `cancelled`: the result is no longer needed; the runner stops the pull and the build,
 * and reports `cancelled`.
 */
export const BuildAssignment = assignmentOf('build', Type.Enum(['done', 'cancelled'] as const), BuildSpec);
export type BuildAssignment = Static<typeof BuildAssignment>;

export const BuildDetail = Type.Object({
  /** Why it failed. */
  error: Type.Optional(Type.String()),
  /** With `done`: digest of the image's manifest, and how many layers it has. */
  manifest_name: Type.Optional(text(512)),
  layer_count: Type.Optional(Count),
});
export type BuildDetail = Static<typeof BuildDetail>;

export const BuildReport = reportOf(
  'build',
  Type.Enum(['done', 'failed', 'cancelled', 'unsupported'] as const),
  BuildDetail,
);
export type BuildReport = Static<typeof BuildReport>;
