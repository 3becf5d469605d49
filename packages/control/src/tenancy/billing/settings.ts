import { parseAmount } from '@releap/contract';
import { DEFAULT_PRICES, FREE, type Prices } from './prices.ts';

/**
 * `off`: nothing is charged. `meter`: use is charged, and nothing is refused at any balance.
 * `enforce`: without credits, requests are refused and sandboxes are deleted.
 */
export const BILLING_MODES = ['off', 'meter', 'enforce'] as const;
export type BillingMode = (typeof BILLING_MODES)[number];

/** Billing settings. */
export interface BillingSettings {
  mode: BillingMode;
  prices: Prices;
  /** Overdraft limit in nano-credits for organizations without their own. */
  overdraftLimit: bigint;
  /** Interval at which a running sandbox is charged, in milliseconds. */
  meterMs: number;
  /** Interval at which uncharged use is compared with the balances, in milliseconds. */
  checkMs: number;
  /** Interval of the charging task, in milliseconds: ended meters are charged within this time. */
  passMs: number;
}

/** One credit: with the default prices some 44 hours of a sandbox of the default size. */
export const OVERDRAFT_DEFAULT = '1';

export const BILLING_SETTINGS: BillingSettings = {
  mode: 'meter',
  prices: DEFAULT_PRICES,
  overdraftLimit: parseAmount(OVERDRAFT_DEFAULT) ?? 0n,
  meterMs: 3_600_000,
  checkMs: 60_000,
  passMs: 2_000,
};

/** The price table of this mode. */
export function effectivePrices(settings: BillingSettings): Prices {
  return settings.mode === 'off' ? FREE : settings.prices;
}
