/** Page sizes and waits that a query asks for, clamped to what the contract allows. */
import { LEDGER_LIMITS } from '../wire/credits.ts';
import { DEFAULTS, LIMITS } from '../wire/limits.ts';

/** Items a page, from what the query said. */
export function clampLimit(limit: number | undefined): number {
  return clamp(limit ?? DEFAULTS.pageSize, LIMITS.pageMin, LIMITS.pageMax);
}

/** Milliseconds a long poll may wait, from what the query said. */
export function clampTimeout(timeoutMs: number | undefined): number {
  return clamp(timeoutMs ?? DEFAULTS.waitMs, LIMITS.waitMsMin, LIMITS.waitMsMax);
}

/** Ledger entries to give, from what the query said. */
export function clampLedgerLimit(limit: number | undefined): number {
  return clamp(limit ?? LEDGER_LIMITS.default, LEDGER_LIMITS.min, LEDGER_LIMITS.max);
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(max, Math.max(min, value));
}
