/** The kind `build`: one attempt to build an image. The id is the job's; the generation is the attempt, the fencing token. */
import { Type, type Static } from 'typebox';
import { assignmentOf, reportOf } from './envelope.ts';
import { Count, Large, text, Uuid } from '../wire/platform/fields.ts';
import { RootSource } from './source.ts';

export const BuildSpec = Type.Object({ image_id: Uuid, root: RootSource, docker: Type.Boolean() });
export type BuildSpec = Static<typeof BuildSpec>;

/**
 * `done`: the image must be built. `cancelled`: the result is no longer needed; the runner stops the pull and the build,
 * and reports `cancelled`.
 */
export const BuildAssignment = assignmentOf('build', Type.Enum(['done', 'cancelled'] as const), BuildSpec);
export type BuildAssignment = Static<typeof BuildAssignment>;

/** Most characters of `log_tail`. */
export const BUILD_LOG_TAIL_CHARS = 8192;

export const BuildDetail = Type.Object({
  /** Why it failed, in one line. */
  error: Type.Optional(Type.String()),
  /** The end of the build's log, if it has one. */
  log_tail: Type.Optional(text(BUILD_LOG_TAIL_CHARS)),
  /** With `done`: digest of the image's manifest, and how many layers it has. */
  manifest_name: Type.Optional(text(512)),
  layer_count: Type.Optional(Count),
  /** Size of the root image. */
  bytes: Type.Optional(Large),
});
export type BuildDetail = Static<typeof BuildDetail>;

export const BuildReport = reportOf(
  'build',
  Type.Enum(['done', 'failed', 'cancelled', 'unsupported'] as const),
  BuildDetail,
);
export type BuildReport = Static<typeof BuildReport>;
