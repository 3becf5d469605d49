/** Page sizes and waits of a query, clamped to the contract's limits. */
import { LEDGER_LIMITS } from '../wire/tenancy/credits.ts';
import { DEFAULTS, LIMITS } from '../wire/platform/limits.ts';

/** Items per page. */
export function clampLimit(limit: number | undefined, max: number = LIMITS.pageMax): number {
  return clamp(limit ?? DEFAULTS.pageSize, LIMITS.pageMin, max);
}

/** Longest wait of a long poll, in milliseconds. */
export function clampTimeout(timeoutMs: number | undefined): number {
  return clamp(timeoutMs ?? DEFAULTS.waitMs, LIMITS.waitMsMin, LIMITS.waitMsMax);
}

/** Ledger entries to return. */
export function clampLedgerLimit(limit: number | undefined): number {
  return clamp(limit ?? LEDGER_LIMITS.default, LEDGER_LIMITS.min, LEDGER_LIMITS.max);
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(max, Math.max(min, value));
}
