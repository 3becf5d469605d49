/** Quotas of organizations. They are checked by functions and triggers of the database (migration "quotas"). */
import { QUOTA_RESOURCES, type QuotaList, type QuotaRequest, type QuotaResource } from '@releap/contract';
import { queryAll, statement, type Database, type Queryable } from '@releap/database';

/** What each organization may have that has no quotas of its own. */
export type Quotas = Readonly<Record<QuotaResource, number>>;

export const DEFAULT_QUOTAS: Quotas = {
  sandboxes: 20_000,
  cores: 20_000,
  memory_mib: 64 * 2 ** 20,
  function_instances: 10_000,
  stored_bytes: 64 * 2 ** 40,
  pending_invocations: 250_000,
  pending_invocation_bytes: 8 * 2 ** 30,
};

/** $1 resources, $2 their quotas */
const SET_DEFAULTS = statement(
  'quota-defaults-set',
  `insert into quota_defaults as d (resource, quota) select * from unnest($1::text[], $2::bigint[])
   on conflict (resource) do update set quota = excluded.quota where d.quota <> excluded.quota`,
);

/** A new quota is in force at once: use is counted again. $1 organization, $2 resources, $3 their quotas; null: none of its own */
const SET = statement(
  'quotas-set',
  `with given as (
     select * from unnest($2::text[], $3::bigint[]) as g(resource, quota)
   ), cleared as (
     delete from org_quotas where org_id = $1 and resource in (select resource from given where quota is null)
   ), recounted as (
     update org_usage set counted_at = '-infinity' where org_id = $1 and resource in (select resource from given)
   )
   insert into org_quotas (org_id, resource, quota) select $1, resource, quota from given where quota is not null
   on conflict (org_id, resource) do update set quota = excluded.quota, updated_at = now()`,
);

/** $1 organization */
const READ = statement<{ resource: QuotaResource; quota: string; own: boolean; used: string }>(
  'quotas-read',
  `select d.resource, coalesce(q.quota, d.quota) as quota, q.quota is not null as own, org_used($1, d.resource) as used
     from quota_defaults d left join org_quotas q on q.org_id = $1 and q.resource = d.resource`,
);

/** Makes these the quotas of all organizations without their own: those of the server that started last. */
export async function setDefaultQuotas(on: Queryable, quotas: Quotas): Promise<void> {
  await queryAll(on, SET_DEFAULTS, [
    [...QUOTA_RESOURCES],
    QUOTA_RESOURCES.map((resource) => String(quotas[resource])),
  ]);
}

export async function setQuotas(on: Queryable, orgId: string, request: QuotaRequest): Promise<void> {
  const given = QUOTA_RESOURCES.filter((resource) => request[resource] !== undefined);
  await queryAll(on, SET, [orgId, given, given.map((resource) => request[resource] ?? null)]);
}

export async function readQuotas(database: Database, orgId: string): Promise<QuotaList> {
  const rows = new Map(
    (await queryAll(database.pool, READ, [orgId])).map((row) => [row.resource, row] as const),
  );
  const quotas = QUOTA_RESOURCES.flatMap((resource) => {
    const row = rows.get(resource);
    if (row === undefined) return [];
    const source = row.own ? ('organization' as const) : ('global' as const);
    return [{ resource, limit: Number(row.quota), source, used: Number(row.used) }];
  });
  return { org_id: orgId, quotas };
}
