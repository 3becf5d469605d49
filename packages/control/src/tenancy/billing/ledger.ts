/** Reads of the ledger, and entries that operators write. */
import {
  formatAmount,
  formatSandboxId,
  type CreditsRecord,
  type LedgerEntry,
  type LedgerKind,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { BillingSettings } from './settings.ts';

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

const NEWEST = statement<EntryRow>(
  'ledger-newest',
  `select ${ENTRY} from ledger_entries where org_id = $1 order by id desc limit $2`,
);

const GRANTS = statement<EntryRow>(
  'ledger-grants',
  `select ${ENTRY} from credit_ledger where org_id = $1 and kind in ('grant', 'adjustment') order by id desc limit $2`,
);

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
  limit: number,
): Promise<CreditsRecord> {
  const [account, entries] = await Promise.all([
    queryOne(on, ACCOUNT, [orgId]),
    queryAll(on, NEWEST, [orgId, limit]),
  ]);
  const own = account?.overdraft_limit ?? null;
  return {
    org_id: orgId,
    balance: formatAmount(BigInt(account?.balance ?? 0)),
    overdraft_limit: formatAmount(own === null ? settings.overdraftLimit : BigInt(own)),
    overdraft_limit_source: own === null ? 'global' : 'organization',
    enabled: settings.mode === 'enforce',
    ledger: entries.map(toEntry),
  };
}

export async function readGrants(on: Queryable, orgId: string, limit: number): Promise<LedgerEntry[]> {
  return (await queryAll(on, GRANTS, [orgId, limit])).map(toEntry);
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
