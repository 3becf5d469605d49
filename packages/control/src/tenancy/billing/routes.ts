import { operations, type CreditsRecord } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { requireOrg } from '../management/access.ts';
import type { Billing } from './billing.ts';
import { readCredits } from './ledger.ts';

export function creditRoutes(
  { management }: Planes,
  { database, billing }: { database: Database; billing: Billing },
): void {
  management.operation(operations.getCredits, async ({ params, query, caller }): Promise<CreditsRecord> => {
    const org = await requireOrg(database.pool, caller, params.id);
    return readCredits(database.pool, billing.settings, org.id, query);
  });
}
