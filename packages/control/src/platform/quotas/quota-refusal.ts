/** What the database's checks of quotas refuse (migration "quotas"), as an answer. */
import { QuotaExceeded, type ExceededQuota } from '@releap/contract';

/** Of the exceptions that `take_quota` raises. */
const EXCEEDED = 'RQ001';
/** `pending_invocations` are counted again at most so often: a PostgreSQL interval. */
export const RECOUNT = '2 seconds';

export interface Exceeded extends ExceededQuota {
  /** How much more was asked for. */
  wanted: number;
}

/** @returns 429 with the limit, its use and its owner, in the form of any overload */
export function quotaRefusal({ wanted, ...quota }: Exceeded): QuotaExceeded {
  const { owner, resource, limit, used } = quota;
  const name = resource.replaceAll('_', ' ');
  const message =
    `organization ${owner} uses ${used} of its quota of ${limit} ${name}, and this would use ${wanted} more: ` +
    'end or delete some first, or ask the operator for a larger quota';
  return new QuotaExceeded(message, quota);
}

/** The refusal, if a statement failed because a quota would be exceeded. */
export function asQuotaRefusal(error: unknown): QuotaExceeded | undefined {
  const { code, detail } = error as { code?: string; detail?: string };
  return code === EXCEEDED && detail !== undefined ? quotaRefusal(JSON.parse(detail) as Exceeded) : undefined;
}
