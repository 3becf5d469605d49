/** Reads of the ledger, and entries that operators write. */
import {
  formatAmount,
  formatSandboxId,
  type CreditsRecord,
  type LedgerEntry,
  type LedgerKind,
  clampLedgerLimit,
  LEDGER_LIMITS,
  LIST_CURSORS,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { BillingSettings } from './settings.ts';
import { pagedList, type NextPage, type PageRequest } from '../../platform/paged-list.ts';

interface EntryRow {
  id: string;
  amount: string;
  kind: LedgerKind;
  sandbox_id: string | null;
  region: string | null;
  note: string | null;
  period_from: Date | null;
  period_to: Date | null;
  created_at: Date;
}

const ENTRY = 'id, amount, kind, sandbox_id, region, note, period_from, period_to, created_at';

const NEWEST_FIRST = {
  columns: ENTRY,
  parameters: 1,
  keys: [{ sql: 'id', type: 'bigint' }],
  direction: 'desc',
} as const;
const PAGE = { most: LEDGER_LIMITS.default, size: clampLedgerLimit };
const NEWEST = pagedList<EntryRow>('ledger-newest', LIST_CURSORS.ledger, {
  ...NEWEST_FIRST,
  from: 'ledger_entries',
  where: 'org_id = $1',
});
const GRANTS = pagedList<EntryRow>('ledger-grants', LIST_CURSORS.grants, {
  ...NEWEST_FIRST,
  from: 'credit_ledger',
  where: `org_id = $1 and kind in ('grant', 'adjustment')`,
});

interface Account {
  balance: string;
  overdraft_limit: string | null;
}

const ACCOUNT = statement<Account>(
  'credit-account',
  `select balance, overdraft_limit from credit_accounts where org_id = $1`,
);

const APPEND = statement<EntryRow & { made: boolean }>(
  'ledger-append',
  `with made as (
     insert into credit_ledger (org_id, amount, kind, note, request_id) values ($1, $2, $3, $4, $5)
     on conflict (request_id) where request_id is not null do nothing returning ${ENTRY}
   )
   select ${ENTRY}, true as made from made
   union all select ${ENTRY}, false from credit_ledger where request_id = $5 and org_id = $1`,
);

const LIMIT = statement<Account>(
  'credit-overdraft-limit',
  `insert into credit_accounts as a (org_id, overdraft_limit) values ($1, $2)
   on conflict (org_id) do update set overdraft_limit = excluded.overdraft_limit, updated_at = now()
   returning balance, overdraft_limit`,
);

/** The public record. The caller has checked that the organization exists and may be read. */
export async function readCredits(
  on: Queryable,
  settings: BillingSettings,
  orgId: string,
  query: PageRequest,
): Promise<CreditsRecord> {
  const [account, { rows: entries, next }] = await Promise.all([
    queryOne(on, ACCOUNT, [orgId]),
    NEWEST.page(on, [orgId], query, PAGE),
  ]);
  const own = account?.overdraft_limit ?? null;
  return {
    org_id: orgId,
    balance: formatAmount(BigInt(account?.balance ?? 0)),
    overdraft_limit: formatAmount(own === null ? settings.overdraftLimit : BigInt(own)),
    overdraft_limit_source: own === null ? 'global' : 'organization',
    enabled: settings.mode === 'enforce',
    ledger: entries.map(toEntry),
    ...next,
  };
}

export async function readGrants(
  on: Queryable,
  orgId: string,
  query: PageRequest,
): Promise<{ grants: LedgerEntry[] } & NextPage> {
  const { rows, next } = await GRANTS.page(on, [orgId], query, PAGE);
  return { grants: rows.map(toEntry), ...next };
}

/** Nano-credits. */
export async function readBalance(on: Queryable, orgId: string): Promise<bigint> {
  return BigInt((await queryOne(on, ACCOUNT, [orgId]))?.balance ?? 0);
}

/** Writes a grant or an adjustment, or returns the one that this request wrote before. @param entry.amount nano-credits */
export async function appendEntry(
  on: Queryable,
  entry: {
    orgId: string;
    amount: bigint;
    kind: 'grant' | 'adjustment';
    note: string | null;
    requestId: string;
  },
): Promise<{ entry: LedgerEntry; made: boolean }> {
  const { orgId, amount, kind, note, requestId } = entry;
  const row = await queryOne(on, APPEND, [orgId, String(amount), kind, note, requestId]);
  if (row === undefined) throw new Error('the insert of a ledger entry returned no row');
  return { entry: toEntry(row), made: row.made };
}

/** @param limit nano-credits; null for the default limit */
export async function setOverdraftLimit(on: Queryable, orgId: string, limit: bigint | null): Promise<void> {
  await queryAll(on, LIMIT, [orgId, limit === null ? null : String(limit)]);
}

function toEntry(row: EntryRow): LedgerEntry {
  const { sandbox_id: sandbox, region, period_from: from, period_to: to } = row;
  return {
    id: Number(row.id),
    amount: formatAmount(BigInt(row.amount)),
    kind: row.kind,
    vm_id: sandbox === null ? null : region === null ? sandbox : formatSandboxId(region, sandbox),
    note: row.note ?? (from !== null && to !== null ? `${from.toISOString()} to ${to.toISOString()}` : null),
    created_at: row.created_at.toISOString(),
  };
}
