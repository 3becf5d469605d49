/** Whether an organization has credits for something that costs. */
import { formatAmount, outOfCredits } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { BillingSettings } from './settings.ts';

const BALANCE = statement<{ balance: string }>(
  'credit-balance',
  `select balance from credit_accounts where org_id = $1`,
);

/** How long a positive result is cached; a refusal is not, so that a grant takes effect at once. */
const CACHE_MS = 1_000;
const CACHE_ENTRIES = 20_000;

export interface CreditCheck {
  /** @throws 402 when credits are enforced and none are left */
  require(orgId: string): Promise<void>;
  /** These were charged: forgets their cached results. */
  charged(orgIds: readonly string[]): void;
}

export function createCreditCheck(database: Database, settings: BillingSettings): CreditCheck {
  const validUntil = new Map<string, number>();
  return {
    async require(orgId) {
      if (settings.mode !== 'enforce') return;
      const now = performance.now();
      if ((validUntil.get(orgId) ?? 0) > now) return;
      const balance = BigInt((await queryOne(database.pool, BALANCE, [orgId]))?.balance ?? 0);
      if (balance <= 0n) {
        throw outOfCredits(
          `the organization that owns this project is out of credits: its balance is ${formatAmount(balance)}, and must be above 0`,
        );
      }
      if (validUntil.size >= CACHE_ENTRIES) validUntil.clear();
      validUntil.set(orgId, now + CACHE_MS);
    },
    charged(orgIds) {
      for (const id of orgIds) validUntil.delete(id);
    },
  };
}
