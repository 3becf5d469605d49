/** Global regions: groups of regions that a create can name in place of one. */
import {
  cleanName,
  conflict,
  notFound,
  quote,
  type ApiError,
  type OperatorGlobalRegion,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import { lockRegions, requireFreeId } from './operator-regions.ts';

const INSERT = statement('global-region-insert', 'insert into global_regions (id, name) values ($1, $2)');
const RENAME = statement<OperatorGlobalRegion>(
  'global-region-rename',
  `update global_regions g set name = $2 where id = $1
   returning id, name, array(select r.id from regions r where r.global_region_id = g.id order by r.id) as members`,
);
/** $1 global region */
const USES = statement<{ members: string[]; organizations: number; projects: number }>(
  'global-region-uses',
  `select array(select r.id from regions r where r.global_region_id = g.id order by r.id) as members,
          (select count(*)::integer from organizations o where o.default_region = g.id and o.deleted_at is null) as organizations,
          (select count(*)::integer from projects p where p.default_region = g.id and p.deleted_at is null) as projects
     from global_regions g where g.id = $1 for no key update of g`,
);
const DELETE = statement('global-region-delete', 'delete from global_regions where id = $1');

/** @throws 409 for an id that a region or a global region has */
export async function createGlobalRegion(
  database: Database,
  id: string,
  name: string = id,
): Promise<OperatorGlobalRegion> {
  const cleaned = cleanName(name);
  await database.transaction(async (client) => {
    await requireFreeId(client, id, await lockRegions(client));
    await queryAll(client, INSERT, [id, cleaned]);
  });
  return { id, name: cleaned, members: [] };
}

/** @throws 404 */
export async function renameGlobalRegion(
  { pool }: Database,
  id: string,
  name: string,
): Promise<OperatorGlobalRegion> {
  const renamed = await queryOne(pool, RENAME, [id, cleanName(name)]);
  if (renamed === undefined) throw globalRegionNotFound(id);
  return renamed;
}

/** @throws 404; 409 while regions belong to it, or it is a default */
export async function deleteGlobalRegion(database: Database, id: string): Promise<void> {
  await database.transaction(async (client) => {
    await lockRegions(client);
    const uses = await queryOne(client, USES, [id]);
    if (uses === undefined) throw globalRegionNotFound(id);
    const { members, organizations, projects } = uses;
    if (members.length > 0)
      throw conflict(
        `global region ${quote(id)} has the regions ${members.map(quote).join(', ')}: take them out first`,
        'in_use',
      );
    if (organizations + projects > 0)
      throw conflict(
        `global region ${quote(id)} is the default of ${organizations} organizations and ${projects} projects`,
        'in_use',
      );
    await queryAll(client, DELETE, [id]);
  });
}

function globalRegionNotFound(id: string): ApiError {
  return notFound(`global region ${quote(id)} not found`, 'global_region_not_found');
}
