import { badRequest, quote } from '@releap/contract';
import { queryAll, isUniqueViolation, statement, type Database, type Queryable } from '@releap/database';
import type { Principal } from '../../platform/auth/authenticator.ts';

export interface RegionRow {
  id: string;
  name: string;
  enabled: boolean;
  is_default: boolean;
  toolbox_proxy_url: string | null;
  global_region_id: string | null;
}

/** Matches every region that belongs to some global region. */
export const WORLD = 'world';
const CACHE_MS = 1_000;
const RECENT_MS = 60_000;

const ALL = statement<RegionRow>(
  'regions-all',
  'select id, name, enabled, is_default, toolbox_proxy_url, global_region_id from regions order by id',
);
const GLOBALS = statement<{ id: string; name: string; member_count: number }>(
  'regions-global',
  `select g.id, g.name, count(r.id)::integer as member_count
     from global_regions g left join regions r on r.global_region_id = g.id and r.enabled
    group by g.id, g.name order by g.id`,
);

export interface Regions {
  /** Disabled ones too: they have sandboxes and functions. */
  all(): Promise<RegionRow[]>;
  active(): Promise<RegionRow[]>;
  /** All of them for calls that must not wait for the database: up to a minute old, and older ones while it does not answer. */
  recent(): Promise<RegionRow[]>;
  globals(): Promise<{ id: string; name: string; member_count: number }[]>;
  /**
   * The region of a slug, of a global region's id, or the default for null.
   * @throws 400 for one that is unknown, disabled, or has no active members.
   */
  resolve(
    asked: string | null,
    principal: Principal,
    regionWithMostCapacity: (ids: string[]) => Promise<string>,
  ): Promise<string>;
}

export function createRegions(database: Database): Regions {
  let cached: { at: number; rows: RegionRow[] } | undefined;

  let reading: Promise<RegionRow[]> | undefined;

  const load = (): Promise<RegionRow[]> =>
    (reading ??= queryAll(database.pool, ALL)
      .then((rows) => {
        cached = { at: performance.now(), rows };
        return rows;
      })
      .finally(() => (reading = undefined)));

  const read = async (): Promise<RegionRow[]> =>
    cached !== undefined && performance.now() - cached.at < CACHE_MS ? cached.rows : await load();

  const readRecent = async (): Promise<RegionRow[]> => {
    if (cached === undefined) return await load();
    const { at, rows } = cached;
    const age = performance.now() - at;
    if (age < CACHE_MS) return rows;
    const loaded = load().catch(() => rows);
    return age < RECENT_MS ? rows : await loaded;
  };

  const enabled = (rows: RegionRow[]): RegionRow[] => rows.filter((region) => region.enabled);
  const active = async (): Promise<RegionRow[]> => enabled(await read());

  return {
    all: read,
    active,
    recent: readRecent,
    globals: () => queryAll(database.pool, GLOBALS),
    async resolve(asked, principal, regionWithMostCapacity) {
      const rows = await read();
      const slug = asked ?? principal.defaultRegion ?? rows.find((region) => region.is_default)?.id;
      if (slug === undefined)
        throw badRequest('region is required: this installation has no default region', 'unknown_region');
      const exact = rows.find((region) => region.id === slug);
      if (exact?.enabled) return exact.id;
      if (exact !== undefined)
        throw badRequest(`region ${quote(slug)} is disabled: use ${known(rows)}`, 'unknown_region');
      const members = rows.filter(
        (region) =>
          region.enabled &&
          (slug === WORLD ? region.global_region_id !== null : region.global_region_id === slug),
      );
      if (members.length > 0) return regionWithMostCapacity(members.map((region) => region.id));
      const isGlobal =
        slug === WORLD ||
        rows.some((region) => region.global_region_id === slug) ||
        (await queryAll(database.pool, GLOBALS)).some((region) => region.id === slug);
      throw badRequest(
        isGlobal
          ? `global region ${quote(slug)} has no active regions: use ${known(rows)}`
          : `region ${quote(slug)} is unknown: use ${known(rows)}`,
        'unknown_region',
      );
    },
  };
}

function known(rows: readonly RegionRow[]): string {
  const ids = rows.filter((region) => region.enabled).map((region) => quote(region.id));
  return ids.length === 0 ? 'none (there are no active regions)' : ids.join(' or ');
}

export interface RegionConfig {
  /** Slug. */
  id: string;
  name?: string | undefined;
  toolboxProxyUrl?: string | undefined;
  /** Base URL of preview URLs: `https://preview.example.org`. */
  previewUrl?: string | undefined;
}

/**
 * Creates the region, or updates the fields that are configured here; others stay as another server has set them. The
 * first region of an installation becomes its default.
 */
export async function ensureRegion(on: Queryable, region: RegionConfig): Promise<void> {
  const values = [region.id, region.name ?? null, region.toolboxProxyUrl ?? null, region.previewUrl ?? null];
  try {
    await queryAll(on, ENSURE, values);
  } catch (error) {
    // Another first server has created the default region concurrently.
    if (!isUniqueViolation(error, 'regions_one_default')) throw error;
    await queryAll(on, ENSURE, values);
  }
}

const ENSURE = statement(
  'region-ensure',
  `insert into regions as r (id, name, toolbox_proxy_url, preview_url, is_default)
   values ($1, coalesce($2, $1), $3, $4, not exists (select 1 from regions where is_default))
   on conflict (id) do update set name = coalesce($2, r.name), toolbox_proxy_url = coalesce($3, r.toolbox_proxy_url),
     preview_url = coalesce($4, r.preview_url)`,
);
