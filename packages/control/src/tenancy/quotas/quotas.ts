/** Quotas of organizations. They are checked by functions and triggers of the database (migration "quotas"). */
import {
  ApiError,
  OVERLOAD_RETRY_AFTER_SECS,
  QUOTA_RESOURCES,
  type QuotaList,
  type QuotaRequest,
  type QuotaResource,
} from '@releap/contract';
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

/** Of the exceptions that `take_quota` raises. */
const EXCEEDED = 'RQ001';
/** `pending_invocations` are counted again at most so often: a PostgreSQL interval. */
export const RECOUNT = '2 seconds';

export interface Exceeded {
  /** Organization. */
  owner: string;
  resource: QuotaResource;
  limit: number;
  used: number;
  /** How much more was asked for. */
  wanted: number;
}

/** @returns 429 with the limit, its use and its owner, in the form of any overload */
export function quotaRefusal({ owner, resource, limit, used, wanted }: Exceeded): ApiError {
  const name = resource.replaceAll('_', ' ');
  const message =
    `organization ${owner} uses ${used} of its quota of ${limit} ${name}, and this would use ${wanted} more: ` +
    'end or delete some first, or ask the operator for a larger quota';
  const seconds = OVERLOAD_RETRY_AFTER_SECS;
  return new ApiError(429, message, {
    headers: { 'retry-after': String(seconds) },
    fields: { message, retry_after_secs: seconds, owner, resource, limit, used },
  });
}

/** The refusal, if a statement failed because a quota would be exceeded. */
export function asQuotaRefusal(error: unknown): ApiError | undefined {
  const { code, detail } = error as { code?: string; detail?: string };
  return code === EXCEEDED && detail !== undefined ? quotaRefusal(JSON.parse(detail) as Exceeded) : undefined;
}

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
