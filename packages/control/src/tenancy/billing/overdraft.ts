/** Enforces overdraft limits: deletes the running sandboxes of organizations beyond theirs. */
import { formatAmount } from '@releap/contract';
import { queryAll, statement, type Database, type Queryable, type SandboxRow } from '@releap/database';
import type { Logger } from 'pino';
import { METERED_STATUSES } from './metered-statuses.ts';
import type { BillingSettings } from './settings.ts';

/** Of these organizations ($1), those beyond their limit ($2 where they have none of their own). */
const BEYOND = statement<{ org_id: string; balance: string; overdraft_limit: string }>(
  'overdraft-beyond',
  `select org_id, balance, coalesce(overdraft_limit, $2::bigint) as overdraft_limit from credit_accounts
    where org_id = any($1::uuid[]) and balance < 0 and balance < -coalesce(overdraft_limit, $2::bigint)`,
);

/** Sandboxes that are charged, or will be when they are placed. $1 organization, $2 statuses */
const RUNNING = statement<{ id: string; project_id: string }>(
  'overdraft-running',
  `select s.id, s.project_id from projects p join sandbox_states s on s.project_id = p.id
    where p.org_id = $1 and s.status <> 'deleted' and s.status = any($2::text[]) order by s.id limit $3`,
);

const WRITE = statement(
  'ledger-deletions',
  `insert into credit_ledger (org_id, amount, kind, sandbox_id, region, note)
   select $1, 0, 'deletion', t.id, t.region, $4 from unnest($2::uuid[], $3::text[]) as t(id, region) order by t.id`,
);

const BATCH = 200;

/** How sandboxes are deleted in a transaction: by their life cycle, which lies above this wing. */
export interface SandboxDeletion {
  applyWithin(
    on: Queryable,
    event: 'delete',
    changes: readonly { id: string; project_id: string; error: string }[],
  ): Promise<SandboxRow[]>;
  announce(rows: readonly SandboxRow[]): void;
}

/**
 * Deletes the running sandboxes of those of `orgIds` that are beyond their overdraft limit. The reason is written to each
 * sandbox's `error` and, in the same transaction, to the ledger.
 * @returns how many
 */
export async function enforceOverdraft(
  context: { database: Database; lifecycle: SandboxDeletion; settings: BillingSettings; log: Logger },
  orgIds: readonly string[],
): Promise<number> {
  const { database, lifecycle, settings, log } = context;
  if (settings.mode !== 'enforce' || orgIds.length === 0) return 0;
  const beyond = await queryAll(database.pool, BEYOND, [orgIds, String(settings.overdraftLimit)]);
  let deleted = 0;
  for (const org of beyond) {
    const error =
      `deleted because its organization is out of credits: the balance of ${formatAmount(BigInt(org.balance))} is ` +
      `beyond the overdraft limit of ${formatAmount(BigInt(org.overdraft_limit))}`;
    for (;;) {
      const { found, moved } = await database.transaction(async (client) => {
        const rows = await queryAll(client, RUNNING, [org.org_id, ['pending', ...METERED_STATUSES], BATCH]);
        const changed = await lifecycle.applyWithin(
          client,
          'delete',
          rows.map(({ id, project_id }) => ({ id, project_id, error })),
        );
        if (changed.length > 0) {
          // The ledger names what tenants know: not the sandboxes that a service owns.
          const shown = changed.filter((row) => row.owner_kind === 'project');
          const ids = shown.map((row) => row.id);
          await queryAll(client, WRITE, [org.org_id, ids, shown.map((row) => row.region), error]);
        }
        return { found: rows.length, moved: changed };
      });
      if (moved.length > 0) lifecycle.announce(moved);
      deleted += moved.length;
      if (found < BATCH || moved.length === 0) break;
    }
    log.warn({ org: org.org_id, balance: org.balance }, 'an organization is beyond its overdraft limit');
  }
  return deleted;
}
