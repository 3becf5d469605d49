/** The operator plane's own operations: its audit log, and permissions of hosts to join. */
import type { Database } from '@releap/database';
import type { RunnerCredentials } from '../../platform/credentials/runner-credentials.ts';
import {
  isUuid,
  notFound,
  OPERATOR_AUDIT_LIMITS,
  operatorOperations,
  quote,
  type OperatorAuditEntry,
  LIST_CURSORS,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { BY_TIME, pagedList } from '../../platform/paged-list.ts';
import { purgeOperatorAudit } from './purge.ts';

type AuditRow = Omit<OperatorAuditEntry, 'created_at' | 'actor'> & { created_at: Date };

/** $1 time or null */
const LIST = pagedList<AuditRow>('operator-audit-list', LIST_CURSORS.operatorAudit, {
  columns: 'id, created_at, operation, subject, request, ip, request_id, outcome, error',
  from: 'operator_audit',
  where: `created_at < coalesce($1::timestamptz, 'infinity')`,
  parameters: 1,
  keys: BY_TIME,
  direction: 'desc',
});
const { min: LEAST, max: MOST, default: USUAL } = OPERATOR_AUDIT_LIMITS;
const PAGE = { most: USUAL, size: (limit: number = USUAL) => Math.min(MOST, Math.max(LEAST, limit)) };
const HOST = statement<{ id: string }>(
  'operator-host',
  'select id from host_states where id = $1 and forgotten_at is null',
);

const PURGE_MS = 3_600_000;

export interface OperatorModuleOptions {
  database: Database;
  limits: { auditRetentionDays: number };
  log: Logger;
  runnerCredentials: RunnerCredentials;
}

export function operatorModule({ database, limits, log, runnerCredentials }: OperatorModuleOptions): Module {
  return {
    name: 'operator',
    tasks: [
      {
        name: 'purge-operator-audit',
        everyMs: PURGE_MS,
        leased: true,
        async run(signal) {
          const days = limits.auditRetentionDays;
          if (days === 0) return;
          const removed = await purgeOperatorAudit(database, days, signal);
          if (removed > 0) log.info({ removed, days }, 'purged entries of the operator audit');
        },
      },
    ],
    routes({ operator }) {
      operator.operation(operatorOperations.listOperatorAudit, async ({ query }) => {
        const { rows, next } = await LIST.page(database.pool, [query.before ?? null], query, PAGE);
        return {
          ...next,
          entries: rows.map((row) => ({
            ...row,
            actor: 'operator' as const,
            created_at: row.created_at.toISOString(),
          })),
        };
      });

      operator.operation(operatorOperations.permitHostJoin, async ({ params }) => {
        const id = params.id.toLowerCase();
        const host = isUuid(id) ? await queryOne(database.pool, HOST, [id]) : undefined;
        if (host === undefined) throw notFound(`host ${quote(params.id)} not found`, 'host_not_found');
        const { token, expiresAt } = await runnerCredentials.permitJoin(id);
        return { host_id: id, token, expires_at: expiresAt.toISOString() };
      });
    },
  };
}
