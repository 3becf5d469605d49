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
} from '@releap/contract';
import { queryAll, queryOne, statement } from '@releap/database';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { purgeOperatorAudit } from './purge.ts';

type AuditRow = Omit<OperatorAuditEntry, 'created_at' | 'actor'> & { created_at: Date };

/** $1 time or null, $2 limit */
const LIST = statement<AuditRow>(
  'operator-audit-list',
  `select id, created_at, operation, subject, request, ip, request_id, outcome, error from operator_audit
    where created_at < coalesce($1::timestamptz, 'infinity') order by created_at desc, id desc limit $2`,
);
const HOST = statement<{ id: string }>(
  'operator-host',
  'select id from runners where id = $1 and forgotten_at is null',
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
        const { min, max } = OPERATOR_AUDIT_LIMITS;
        const limit = Math.min(max, Math.max(min, query.limit ?? OPERATOR_AUDIT_LIMITS.default));
        const rows = await queryAll(database.pool, LIST, [query.before ?? null, limit]);
        return {
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
        if (host === undefined) throw notFound(`host ${quote(params.id)} not found`);
        const { token, expiresAt } = await runnerCredentials.permitJoin(id);
        return { host_id: id, token, expires_at: expiresAt.toISOString() };
      });
    },
  };
}
