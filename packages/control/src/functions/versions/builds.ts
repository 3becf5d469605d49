/** Images that are built for versions. Rows record the work, so any server continues it. */
import type { Database } from '@releap/database';
import { queryAll, statement } from '@releap/database';
import { deleteFunctionImages, imageBuilds } from '../../storage/images/function-images.ts';
import type { VersionStates } from './version-states.ts';

const BATCH = 500;
const LOWEST_ID = '00000000-0000-0000-0000-000000000000';

/** $1 id, $2 rows */
const BUILDING = statement<{ id: string; image_id: string }>(
  'function-versions-building',
  `select id, image_id from function_versions where template_state = 'building' and id > $1 order by id limit $2`,
);

/** Versions whose image is not needed any more: a newer one is current. $1 rows */
const superseded = (name: string, functions: string) =>
  statement<{ image_id: string }>(
    name,
    `with old as (
       select v.id, v.image_id from function_versions v join functions f on f.id = v.function_id
        where v.image_id is not null and v.version < f.current_version and v.template_state <> 'building' and ${functions} limit $1
          for update of v skip locked
     )
     update function_versions v set image_id = null from old where v.id = old.id returning old.image_id`,
  );
const SUPERSEDED = superseded('function-versions-superseded', 'true');
/** $2 functions */
const SUPERSEDED_OF = superseded('function-versions-superseded-of', 'f.id = any($2::uuid[])');

/** Moves versions whose build has ended. */
export async function followBuilds(
  { database }: { database: Database },
  states: VersionStates,
): Promise<void> {
  for (let after = LOWEST_ID; ; ) {
    const building = await queryAll(database.pool, BUILDING, [after, BATCH]);
    const builds = new Map(
      (
        await imageBuilds(
          database.pool,
          building.map(({ image_id: id }) => id),
        )
      ).map((build) => [build.id, build]),
    );
    for (const { id, image_id: imageId } of building) {
      const build = builds.get(imageId);
      if (build === undefined) await states.fail(id, 'its image was deleted before it was built');
      else if (build.status === 'failed') await states.fail(id, build.error ?? 'no reason was given');
      else if (build.root !== null) await states.built(id, build.root);
    }
    const last = building.at(-1);
    if (last === undefined || building.length < BATCH) return;
    after = last.id;
  }
}

/**
 * Deletes images of versions that a newer one has replaced. Running instances keep what they run from.
 * @param functions absent: all, each of which is read
 */
export async function deleteSuperseded(
  { database }: { database: Database },
  functions?: readonly string[],
): Promise<void> {
  for (let deleted = BATCH; deleted === BATCH; ) {
    deleted = await database.transaction(async (client) => {
      const old =
        functions === undefined
          ? await queryAll(client, SUPERSEDED, [BATCH])
          : await queryAll(client, SUPERSEDED_OF, [BATCH, functions]);
      await deleteFunctionImages(
        client,
        old.map(({ image_id: id }) => id),
      );
      return old.length;
    });
  }
}
