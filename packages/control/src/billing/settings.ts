import { parseAmount } from '@releap/contract';
import { DEFAULT_PRICES, FREE, type Prices } from './prices.ts';

/**
 * `off`: nothing is charged. `meter`: use is charged, and nothing is refused however deep the balance falls.
 * `enforce`: credits must last.
 */
export const BILLING_MODES = ['off', 'meter', 'enforce'] as const;
export type BillingMode = (typeof BILLING_MODES)[number];

/** What an operator may set of billing. */
export interface BillingSettings {
  mode: BillingMode;
  prices: Prices;
  /** Nano-credits below zero at which running sandboxes are deleted, where an organization has no limit of its own. */
  overdraftLimit: bigint;
  /** A sandbox that runs on is charged this often, in milliseconds. */
  meterMs: number;
  /** How often the use that is not charged yet is compared with the balances, in milliseconds. */
  checkMs: number;
  /** How often it is looked what there is to charge, in milliseconds: what has ended is charged within this time. */
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

/** What is charged by in this mode. */
export function effectivePrices(settings: BillingSettings): Prices {
  return settings.mode === 'off' ? FREE : settings.prices;
}
