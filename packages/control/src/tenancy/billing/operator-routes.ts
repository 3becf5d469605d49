/** Operator operations on credits. */
import {
  AMOUNT_MAX,
  badRequest,
  formatAmount,
  operatorOperations,
  parseAmount,
  quote,
  type CreditsRecord,
  type GrantList,
  type GrantRequest,
  type GrantResponse,
} from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import type { IdGenerator } from '../../platform/idempotency/id-generator.ts';
import { requireOrgOfOperator } from '../management/access.ts';
import { writeAudit } from '../management/audit.ts';
import type { Billing } from './billing.ts';
import { appendEntry, readBalance, readCredits, readGrants, setOverdraftLimit } from './ledger.ts';

/** Names in the audit log. */
const OPERATOR = { operator: 'operator' };

export interface OperatorRoutes {
  database: Database;
  billing: Billing;
}

export function creditOperatorRoutes({ operator }: Planes, context: OperatorRoutes): void {
  const { database, billing } = context;

  const organization = (id: string): Promise<string> => requireOrgOfOperator(database.pool, id);

  async function grant(orgId: string, body: GrantRequest, ids: IdGenerator): Promise<GrantResponse> {
    const requestId = ids.uuid();
    const kind = body.kind ?? 'grant';
    const amount = toAmount('amount', body.amount);
    if (kind === 'grant' ? amount <= 0n : amount === 0n) {
      throw badRequest(
        `amount must be ${kind === 'grant' ? 'above 0 (to take credits away, send kind "adjustment")' : 'other than 0'}, but was ${quote(body.amount)}`,
      );
    }
    const note = body.note ?? null;
    const entry = await database
      .transaction(async (client) => {
        const { entry, made } = await appendEntry(client, { orgId, amount, kind, note, requestId });
        if (made) {
          const target = { kind: 'ledger-entry', id: String(entry.id) };
          const details = { amount: entry.amount, note };
          await writeAudit(client, { actor: OPERATOR, orgId, action: `credits.${kind}`, target, details });
        }
        return entry;
      })
      .catch((error: unknown) => {
        if ((error as { code?: string }).code !== NUMERIC_OUT_OF_RANGE) throw error;
        throw badRequest(`amount ${quote(body.amount)} gives a balance that is out of range`);
      });
    billing.changed(orgId);
    return { org_id: orgId, entry, balance: formatAmount(await readBalance(database.pool, orgId)) };
  }

  operator.operation(
    operatorOperations.grantCredits,
    async ({ params, body, ids }): Promise<GrantResponse> => grant(await organization(params.id), body, ids),
  );

  operator.operation(operatorOperations.listGrants, async ({ params, query }): Promise<GrantList> => {
    const orgId = await organization(params.id);
    const [balance, grants] = await Promise.all([
      readBalance(database.pool, orgId),
      readGrants(database.pool, orgId, query),
    ]);
    return { org_id: orgId, balance: formatAmount(balance), ...grants };
  });

  operator.operation(
    operatorOperations.setOverdraftLimit,
    async ({ params, body }): Promise<CreditsRecord> => {
      const orgId = await organization(params.id);
      const { overdraft_limit: text } = body;
      const limit = text === null ? null : toAmount('overdraft_limit', text);
      if (limit !== null && limit < 0n)
        throw badRequest(`overdraft_limit must be at least 0, but was ${quote(text)}`);
      await database.transaction(async (client) => {
        await setOverdraftLimit(client, orgId, limit);
        const target = { kind: 'organization', id: orgId };
        const details = { overdraft_limit: text };
        await writeAudit(client, { actor: OPERATOR, orgId, action: 'credits.limit', target, details });
      });
      return readCredits(database.pool, billing.settings, orgId, {});
    },
  );
}

/** SQLSTATE of a bigint that does not fit. */
const NUMERIC_OUT_OF_RANGE = '22003';

function toAmount(field: string, text: string): bigint {
  const amount = parseAmount(text);
  if (amount === null || amount > AMOUNT_MAX || amount < -AMOUNT_MAX) {
    throw badRequest(
      `${field} must be a decimal of at most ${formatAmount(AMOUNT_MAX)} credits with at most 9 digits after the point, but was ${quote(text)}`,
    );
  }
  return amount;
}
