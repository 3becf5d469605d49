import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Module } from '../module.ts';
import { dropPartitions, makePartitions, type PartitionedTable } from './partitions.ts';
import { purgeEnded, type Purge } from './purge.ts';

const PARTITIONS_MS = 3_600_000;
const PURGE_MS = 60_000;

export interface RetentionModuleOptions {
  database: Database;
  limits: { auditRetentionDays: number; retentionDays: number };
  log: Logger;
}

/** @param auditDays retention of the audit log in days; 0 for ever */
export function ledgerPartitions(auditDays: number): PartitionedTable[] {
  const months = { period: 'month', behind: 0, ahead: 2 } as const;
  return [
    { table: 'audit_log', ...months, ...(auditDays !== 0 && { days: auditDays }) },
    { table: 'credit_usage', ...months },
  ];
}

/** @param purges of all modules, in their order */
export function retentionModule(
  { database, limits, log }: RetentionModuleOptions,
  purges: readonly Purge[],
): Module {
  return {
    name: 'retention',
    tasks: [
      {
        name: 'partitions',
        everyMs: PARTITIONS_MS,
        leased: true,
        async run() {
          const tables = ledgerPartitions(limits.auditRetentionDays);
          await makePartitions(database, tables, log);
          await dropPartitions(database, tables, log);
        },
      },
      {
        name: 'purge',
        everyMs: PURGE_MS,
        leased: true,
        async run(signal) {
          if (limits.retentionDays === 0) return;
          const removed = await purgeEnded(database, purges, limits.retentionDays, signal);
          if (Object.keys(removed).length > 0)
            log.info({ removed, days: limits.retentionDays }, 'purged ended rows');
        },
      },
    ],
  };
}
