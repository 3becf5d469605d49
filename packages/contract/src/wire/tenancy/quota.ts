/** What an organization may use at a time, and what it uses. */
import { Type, type Static } from 'typebox';
import { UNKNOWN_ORGANIZATION } from '../platform/fields.ts';
import type { ApiResource } from '../platform/operation.ts';
import { OrgParams } from './organization.ts';

export const QUOTA_RESOURCES = [
  'sandboxes',
  'cores',
  'memory_mib',
  'function_instances',
  'stored_bytes',
  'pending_invocations',
  'pending_invocation_bytes',
] as const;
export const QuotaResource = Type.Enum(QUOTA_RESOURCES, {
  description:
    'sandboxes: all that exist, also stopped and paused ones. cores, memory_mib: the guarantees of sandboxes and function ' +
    'instances that run, start or wait for a host. function_instances: also those that try a version. stored_bytes: images, ' +
    'snapshots and volumes, as far as their size is known, and results of invocations. pending_invocations, ' +
    'pending_invocation_bytes: spawned, mapped and scheduled invocations that have not ended, and their payloads.',
});
export type QuotaResource = Static<typeof QuotaResource>;

/** Largest quota: JSON numbers are exact up to here. */
export const QUOTA_MAX = Number.MAX_SAFE_INTEGER;
const Quota = Type.Integer({ minimum: 0, maximum: QUOTA_MAX });

export const QuotaRecord = Type.Object({
  resource: QuotaResource,
  limit: Quota,
  source: Type.Enum(['global', 'organization'] as const, {
    description: '`global`: the same for all organizations. `organization`: set for this one.',
  }),
  used: Type.Number({ description: 'Now. Cores may be fractions.' }),
});
export type QuotaRecord = Static<typeof QuotaRecord>;

export const QuotaList = Type.Object({ org_id: Type.String(), quotas: Type.Array(QuotaRecord) });
export type QuotaList = Static<typeof QuotaList>;

const QuotaChange = Type.Optional(Type.Union([Quota, Type.Null()]));

/** Absent ones stay as they are; null: the one of all organizations again. */
export const QuotaRequest = Type.Object(
  Object.fromEntries(QUOTA_RESOURCES.map((resource) => [resource, QuotaChange])) as Record<
    QuotaResource,
    typeof QuotaChange
  >,
  { additionalProperties: false, minProperties: 1 },
);
export type QuotaRequest = Static<typeof QuotaRequest>;

const EXCEEDED = {
  owner: Type.String({ description: 'Id of the organization.' }),
  resource: QuotaResource,
  limit: Type.Number(),
  used: Type.Number({ description: 'Without what was refused.' }),
};
export const ExceededQuota = Type.Object(EXCEEDED);
export type ExceededQuota = Static<typeof ExceededQuota>;

export const QuotaRefusal = Type.Object(
  {
    error: Type.String(),
    message: Type.String({ description: 'The same sentence as `error`.' }),
    retry_after_secs: Type.Integer({ description: 'Seconds to wait; also in the `Retry-After` header.' }),
    ...EXCEEDED,
  },
  { description: 'The organization has no quota left for it. Nothing was created or started.' },
);
export type QuotaRefusal = Static<typeof QuotaRefusal>;

export const quotaOperations = {
  getQuotas: {
    method: 'GET',
    path: '/orgs/:id/quotas',
    tag: 'Organizations',
    summary: 'Read what an organization may use at a time, and what it uses',
    description:
      'What would exceed a quota is refused with 429. An operator sets them; [quotas.md](quotas.md) says how.',
    security: 'management',
    params: OrgParams,
    items: 'quotas',
    success: { status: 200, response: { description: 'All quotas.', schema: QuotaList } },
    errors: { 404: UNKNOWN_ORGANIZATION },
  },
} as const;

export const quotaResource = {
  tags: {},
  operations: quotaOperations,
  schemas: { Quotas: QuotaList, QuotaRefusal },
} as const satisfies ApiResource;
