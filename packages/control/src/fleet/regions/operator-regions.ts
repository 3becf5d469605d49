/** What the operator does with regions. */
import {
  badRequest,
  cleanName,
  conflict,
  notFound,
  quote,
  type ApiError,
  type OperatorRegion,
  type OperatorRegionList,
  type OperatorRegionStore,
  type RegionCreateRequest,
  type RegionUpdateRequest,
} from '@releap/contract';
import {
  isForeignKeyViolation,
  queryAll,
  queryOne,
  statement,
  type Database,
  type Queryable,
} from '@releap/database';
import { WORLD } from './regions.ts';

interface Row {
  id: string;
  name: string;
  enabled: boolean;
  is_default: boolean;
  global_region_id: string | null;
  toolbox_proxy_url: string | null;
  preview_url: string | null;
  store: OperatorRegionStore | null;
  hosts: number;
  sandboxes: number;
  organizations: number;
  projects: number;
}

/** $1 one region, or null for all */
const LIST = statement<Row>(
  'operator-regions',
  `select r.id, r.name, r.enabled, r.is_default, r.global_region_id, r.toolbox_proxy_url, r.preview_url,
          (select jsonb_build_object('bucket', l.bucket, 'prefix', l.prefix, 'endpoint', l.endpoint, 's3_region', l.s3_region)
             from region_store_locations l where l.region = r.id) as store,
          (select count(*)::integer from runners h where h.region = r.id and h.forgotten_at is null) as hosts,
          (select count(*)::integer from region_contents c where c.region = r.id and c.what = 'sandbox' and not c.deleted) as sandboxes,
          (select count(*)::integer from organizations o where o.default_region = r.id and o.deleted_at is null) as organizations,
          (select count(*)::integer from projects p where p.default_region = r.id and p.deleted_at is null) as projects
     from regions r where $1::text is null or r.id = $1 order by r.id`,
);
const GLOBALS = statement<{ id: string; name: string; members: string[] }>(
  'operator-global-regions',
  `select g.id, g.name, array(select r.id from regions r where r.global_region_id = g.id order by r.id) as members
     from global_regions g order by g.id`,
);
/** Changes of regions wait for each other. Rows that refer to a region can still be written. */
const LOCK = statement<{ id: string; enabled: boolean; is_default: boolean }>(
  'operator-regions-lock',
  'select id, enabled, is_default from regions order by id for no key update',
);
const IS_GLOBAL = statement('operator-global-region', 'select 1 from global_regions where id = $1');
const INSERT = statement('operator-region-insert', 'insert into regions (id, name) values ($1, $1)');
/** $2 an object of the columns that change */
const UPDATE = statement(
  'operator-region-update',
  `update regions r set name = t.name, enabled = t.enabled, global_region_id = t.global_region_id,
          toolbox_proxy_url = t.toolbox_proxy_url, preview_url = t.preview_url
     from regions b cross join lateral jsonb_populate_record(b, $2::jsonb) t where b.id = $1 and r.id = b.id`,
);
const NO_DEFAULT = statement(
  'operator-region-no-default',
  'update regions set is_default = false where is_default and id <> $1',
);
const MAKE_DEFAULT = statement(
  'operator-region-default',
  'update regions set is_default = true where id = $1',
);
/** What a region has, and what refers to it. $1 region */
const CONTENTS = statement<{ what: string; deleted: boolean; n: number }>(
  'operator-region-contents',
  `select what, deleted, count(*)::integer as n from (
     select what, deleted from region_contents where region = $1
     union all select 'host', forgotten_at is not null from runners where region = $1
     union all select 'organization', false from organizations where default_region = $1 and deleted_at is null
     union all select 'project', false from projects where default_region = $1 and deleted_at is null) c
    group by what, deleted order by deleted, what`,
);
const DELETE = statement('operator-region-delete', 'delete from regions where id = $1');

export async function listRegions(on: Queryable): Promise<OperatorRegionList> {
  const [regions, globals] = [await queryAll(on, LIST, [null]), await queryAll(on, GLOBALS)];
  return { regions: regions.map(toRegion), global_regions: globals };
}

export async function createRegion(
  database: Database,
  { id, ...fields }: RegionCreateRequest,
): Promise<OperatorRegion> {
  return await database.transaction(async (client) => {
    const regions = await queryAll(client, LOCK);
    await requireFreeId(client, id, regions);
    await queryAll(client, INSERT, [id]);
    const first = regions.some((region) => region.is_default) ? {} : ({ is_default: true } as const);
    await change(client, { id, enabled: true, is_default: false }, { ...first, ...fields });
    return await readRegion(client, id);
  });
}

/** @throws 404; 400 for an unknown global region; 409 where there would be no enabled default */
export async function updateRegion(
  database: Database,
  id: string,
  fields: RegionUpdateRequest,
): Promise<OperatorRegion> {
  return await database.transaction(async (client) => {
    const found = (await queryAll(client, LOCK)).find((region) => region.id === id);
    if (found === undefined) throw regionNotFound(id);
    await change(client, found, fields);
    return await readRegion(client, id);
  });
}

async function change(
  on: Queryable,
  before: { id: string; enabled: boolean; is_default: boolean },
  { is_default: makeDefault, name, ...fields }: RegionUpdateRequest,
): Promise<void> {
  const { id } = before;
  const enabled = fields.enabled ?? before.enabled;
  if (!enabled && before.is_default)
    throw conflict(`region ${quote(id)} is the default of the platform: make another one the default first`);
  if (!enabled && makeDefault === true)
    throw conflict(`region ${quote(id)} is disabled, and cannot be the default of the platform: enable it`);
  const group = fields.global_region_id ?? null;
  if (group !== null && (await queryOne(on, IS_GLOBAL, [group])) === undefined)
    throw badRequest(`global region ${quote(group)} is unknown: create it first`);
  const columns = {
    ...fields,
    ...(name === undefined ? {} : { name: cleanName(name) }),
    ...withoutFinalSlash('toolbox_proxy_url', fields.toolbox_proxy_url),
    ...withoutFinalSlash('preview_url', fields.preview_url),
  };
  await queryAll(on, UPDATE, [id, JSON.stringify(columns)]);
  if (makeDefault !== true) return;
  // One statement could violate the unique index between its rows.
  await queryAll(on, NO_DEFAULT, [id]);
  await queryAll(on, MAKE_DEFAULT, [id]);
}

const withoutFinalSlash = (field: string, url: string | null | undefined): Record<string, string> =>
  typeof url === 'string' ? { [field]: url.replace(/\/+$/, '') } : {};

/** @throws 404; 409 with what is in it */
export async function deleteRegion(database: Database, id: string): Promise<void> {
  await database.transaction(async (client) => {
    const found = (await queryAll(client, LOCK)).find((region) => region.id === id);
    if (found === undefined) throw regionNotFound(id);
    // Creates that have read it before it was disabled have ended.
    if (found.enabled)
      throw conflict(
        `region ${quote(id)} is enabled: disable it first, so that nothing new is made there`,
        'in_use',
      );
    const contents = await queryAll(client, CONTENTS, [id]);
    if (contents.length > 0) throw notEmpty(id, contents);
    await queryAll(client, DELETE, [id]).catch((error: unknown) => {
      throw isForeignKeyViolation(error)
        ? conflict(`region ${quote(id)} has got something new: try again`, 'in_use')
        : error;
    });
  });
}

function notEmpty(id: string, contents: readonly { what: string; deleted: boolean; n: number }[]): ApiError {
  const texts = contents.map(({ what, deleted, n }) => {
    const gone = deleted ? (what === 'host' ? 'forgotten ' : 'deleted ') : '';
    const noun = n === 1 ? what : `${what}${what === 'sandbox' ? 'es' : 's'}`;
    const isDefault = what === 'organization' || what === 'project';
    return `${n} ${gone}${noun}${isDefault ? ' that use it by default' : ''}`;
  });
  const kept = contents.some(({ deleted }) => deleted)
    ? ' (what was deleted or forgotten is kept for RELEAP_RETENTION_DAYS)'
    : '';
  return conflict(`region ${quote(id)} is not empty: it has ${texts.join(', ')}${kept}`, 'in_use');
}

/** @throws 404 */
export async function readRegion(on: Queryable, id: string): Promise<OperatorRegion> {
  const row = await queryOne(on, LIST, [id]);
  if (row === undefined) throw regionNotFound(id);
  return toRegion(row);
}

function toRegion({ organizations, projects, ...region }: Row): OperatorRegion {
  return { ...region, default_of: { organizations, projects } };
}

/** Regions and global regions share their names: a create gives one of either. */
export async function requireFreeId(
  on: Queryable,
  id: string,
  regions: readonly { id: string }[],
): Promise<void> {
  if (id === WORLD) throw badRequest(`${quote(WORLD)} means every region that belongs to a global region`);
  if (regions.some((region) => region.id === id))
    throw conflict(`there is a region ${quote(id)}`, 'name_exists');
  if ((await queryOne(on, IS_GLOBAL, [id])) !== undefined)
    throw conflict(`there is a global region ${quote(id)}`, 'name_exists');
}

/** For a default: an enabled region, a global region, or `world`. @throws 400 */
export async function requireRegionOrGroup(on: Queryable, id: string): Promise<void> {
  if (id === WORLD || (await queryOne(on, IS_GLOBAL, [id])) !== undefined) return;
  const region = await queryOne(on, LIST, [id]);
  if (region?.enabled !== true)
    throw badRequest(
      `region ${quote(id)} is ${region === undefined ? 'unknown' : 'disabled'}`,
      'unknown_region',
    );
}

/** Locks the regions, see `LOCK`. */
export const lockRegions = (on: Queryable): Promise<{ id: string }[]> => queryAll(on, LOCK);

function regionNotFound(id: string): ApiError {
  return notFound(`region ${quote(id)} not found`, 'region_not_found');
}
