/** Images that are built for versions of functions. They have rows and builds like others, and tenants do not see them among theirs. */
import type { ImageStatus, RootSource } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import { BUILT_ROOT } from './built-root.ts';
import { failBuildsOf } from './build-statements.ts';

/** Begins the names of images that are built for versions of functions. Those of tenants have no `/`. */
const FUNCTION_IMAGES = 'fn/';

export const functionImageName = (versionId: string): string => `${FUNCTION_IMAGES}${versionId}`;

/** Whether tenants see it among their images. */
export const IS_LISTED = (image: string): string => `not starts_with(${image}.name, '${FUNCTION_IMAGES}')`;

/** How the build of an image has ended, or not yet. */
export interface ImageBuild {
  id: string;
  status: ImageStatus;
  /** Why it failed. */
  error: string | null;
  /** What is booted; null until it is built. */
  root: RootSource | null;
}

const BUILDS = statement<ImageBuild>(
  'image-builds',
  `select i.id, i.status, i.error, ${BUILT_ROOT('i')} as root from images i where i.id = any($1::uuid[])`,
);

/** In no order; those of images that were deleted are left out. */
export function imageBuilds(on: Queryable, ids: readonly string[]): Promise<ImageBuild[]> {
  return queryAll(on, BUILDS, [ids]);
}

const DELETE_FUNCTION_IMAGES = statement(
  'image-delete-of-functions',
  `with gone as (
     delete from images i where i.id = any($1::uuid[]) and not (${IS_LISTED('i')}) returning id
   )
   ${failBuildsOf('gone', 'its function was deleted')}`,
);

/** Deletes images that were built for versions, and cancels their builds. */
export async function deleteFunctionImages(on: Queryable, ids: readonly string[]): Promise<void> {
  await queryAll(on, DELETE_FUNCTION_IMAGES, [ids]);
}
