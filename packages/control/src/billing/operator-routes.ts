/** What an operator does about credits. Authorized by the installation's own token, which lies on its machines. */
import {
  AMOUNT_MAX,
  badRequest,
  clampLedgerLimit,
  CreditsQuery,
  formatAmount,
  GrantRequest,
  GRANTS_PATH,
  IDEMPOTENCY_HEADER,
  isUuid,
  notFound,
  OVERDRAFT_PATH,
  OverdraftRequest,
  parseAmount,
  quote,
  REPLAYED_HEADER,
  type CreditsRecord,
  type GrantList,
  type GrantResponse,
} from '@releap/contract';
import { first, statement, type Database } from '@releap/database';
import type { FastifyRequest } from 'fastify';
import type { App } from '../http/app.ts';
import { internalOnly } from '../http/internal-token.ts';
import { RANDOM, type Fresh } from '../idempotency/fresh.ts';
import type { Idempotency } from '../idempotency/idempotency.ts';
import { writeAudit } from '../management/audit.ts';
import type { Billing } from './billing.ts';
import { appendEntry, readBalance, readCredits, readGrants, setOverdraftLimit } from './ledger.ts';

/** Whoever can read the installation's token. */
const OPERATOR = { operator: 'operator' };

const ORG = statement<{ id: string }>(
  'credit-org',
  `select id from organizations where id = $1 and deleted_at is null`,
);

export interface OperatorRoutes {
  database: Database;
  billing: Billing;
  idempotency: Idempotency;
  internalToken: string;
}

export function creditOperatorRoutes(app: App, context: OperatorRoutes): void {
  const { database, billing, idempotency } = context;
  const onRequest = internalOnly(context.internalToken);

  async function organization(request: FastifyRequest): Promise<string> {
    const { id } = request.params as { id: string };
    const row = isUuid(id) ? await first(database.pool, ORG, [id]) : undefined;
    if (row === undefined) throw notFound(`organization ${quote(id)} not found`);
    return row.id;
  }

  async function grant(orgId: string, body: GrantRequest, fresh: Fresh): Promise<GrantResponse> {
    const requestId = fresh.uuid();
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
        throw badRequest(`amount ${quote(body.amount)} leads to a balance that is too large to be kept`);
      });
    billing.changed(orgId);
    return { org_id: orgId, entry, balance: formatAmount(await readBalance(database.pool, orgId)) };
  }

  app.fastify.route({
    method: 'POST',
    url: GRANTS_PATH,
    schema: { body: GrantRequest },
    onRequest,
    handler: async (request, reply): Promise<GrantResponse> => {
      const orgId = await organization(request);
      const body = request.body as GrantRequest;
      const key = request.headers[IDEMPOTENCY_HEADER];
      if (key === undefined) return grant(orgId, body, RANDOM);
      const { method, url } = request;
      const { answer, replayed } = await idempotency.run(
        { caller: 'operator', key: String(key), request: { method, url, body }, repeatable: true },
        (fresh) => grant(orgId, body, fresh),
      );
      if (replayed) reply.header(REPLAYED_HEADER, 'true');
      return answer as GrantResponse;
    },
  });

  app.fastify.route({
    method: 'GET',
    url: GRANTS_PATH,
    schema: { querystring: CreditsQuery },
    onRequest,
    handler: async (request): Promise<GrantList> => {
      const orgId = await organization(request);
      const { limit } = request.query as CreditsQuery;
      const [balance, grants] = await Promise.all([
        readBalance(database.pool, orgId),
        readGrants(database.pool, orgId, clampLedgerLimit(limit)),
      ]);
      return { org_id: orgId, balance: formatAmount(balance), grants };
    },
  });

  app.fastify.route({
    method: 'PUT',
    url: OVERDRAFT_PATH,
    schema: { body: OverdraftRequest },
    onRequest,
    handler: async (request): Promise<CreditsRecord> => {
      const orgId = await organization(request);
      const { overdraft_limit: text } = request.body as OverdraftRequest;
      const limit = text === null ? null : toAmount('overdraft_limit', text);
      if (limit !== null && limit < 0n)
        throw badRequest(`overdraft_limit must be at least 0, but was ${quote(text)}`);
      await database.transaction(async (client) => {
        await setOverdraftLimit(client, orgId, limit);
        const target = { kind: 'organization', id: orgId };
        const details = { overdraft_limit: text };
        await writeAudit(client, { actor: OPERATOR, orgId, action: 'credits.limit', target, details });
      });
      return readCredits(database.pool, billing.settings, orgId, 1);
    },
  });
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
