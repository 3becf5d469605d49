import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Module } from '../module.ts';
import { dropEndedPartitions, makePartitions } from './partitions.ts';
import { purgeEnded, purgeLostRunners, purgeOperatorAudit } from './purge.ts';

const PARTITIONS_MS = 3_600_000;
const PURGE_MS = 60_000;
const HOSTS_MS = 6 * 3_600_000;

export interface RetentionModuleOptions {
  database: Database;
  limits: { auditRetentionDays: number; retentionDays: number };
  log: Logger;
}

export function retentionModule({ database, limits, log }: RetentionModuleOptions): Module {
  return {
    name: 'retention',
    tasks: [
      {
        name: 'partitions',
        everyMs: PARTITIONS_MS,
        leased: true,
        async run(signal) {
          await makePartitions(database, log);
          const days = limits.auditRetentionDays;
          if (days === 0) return;
          await dropEndedPartitions(database, { table: 'audit_log', days }, log);
          const removed = await purgeOperatorAudit(database, days, signal);
          if (removed > 0) log.info({ removed, days }, 'purged entries of the operator audit');
        },
      },
      {
        name: 'purge-hosts',
        everyMs: HOSTS_MS,
        leased: true,
        async run() {
          if (limits.retentionDays === 0) return;
          const removed = await purgeLostRunners(database, limits.retentionDays);
          if (removed > 0)
            log.info({ removed, days: limits.retentionDays }, 'forgot lost hosts without resources');
        },
      },
      {
        name: 'purge',
        everyMs: PURGE_MS,
        leased: true,
        async run(signal) {
          if (limits.retentionDays === 0) return;
          const removed = await purgeEnded(database, limits.retentionDays, signal);
          if (Object.keys(removed).length > 0)
            log.info({ removed, days: limits.retentionDays }, 'purged ended rows');
        },
      },
    ],
  };
}
