import type { Billing } from '../../tenancy/billing/billing.ts';
import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import {
  badRequest,
  internalOperations,
  RUNNING_INVOCATIONS_MS,
  type ServedInvocation,
} from '@releap/contract';
import type { Module } from '../../platform/module.ts';
import { chargeRunning, endAbandoned } from './running.ts';
import { recordFinished, type FinishedInvocation } from './store.ts';

/** Without a report for this long, the gateway of a synchronous invocation has died. */
const ABANDONED_MS = 6 * RUNNING_INVOCATIONS_MS;

export interface GatewayRecordsModuleOptions {
  billing: Billing;
  database: Database;
  log: Logger;
}

/** What gateways report: invocations that run, and those that they have served for clients that waited. */
export function gatewayRecordsModule({ database, billing, log }: GatewayRecordsModuleOptions): Module {
  return {
    name: 'gateway-records',
    routes({ gateway }) {
      gateway.operation(internalOperations.recordInvocations, async ({ body }) => {
        try {
          await recordFinished(database.pool, billing.prices, body.invocations.map(toFinished));
        } catch (error) {
          if (error instanceof RangeError) throw badRequest(error.message);
          throw error;
        }
      });
      gateway.operation(internalOperations.reportRunningInvocations, async ({ body }) => {
        const rows = body.invocations.map((row) => ({
          id: row.id,
          queuedAt: new Date(row.queued_at),
          functionId: row.function_id,
          versionId: row.version_id,
          version: row.version,
          source: row.source,
          attempt: row.attempt,
          startedAt: new Date(row.started_at),
          elapsedMs: row.elapsed_ms,
          cold: row.cold,
        }));
        await chargeRunning(database.pool, billing.prices, rows);
      });
    },
    tasks: [
      {
        name: 'invocations-abandoned',
        everyMs: RUNNING_INVOCATIONS_MS,
        leased: true,
        async run() {
          const count = await endAbandoned(database.pool, ABANDONED_MS);
          if (count > 0) log.warn({ count }, 'the end of invocations was not reported by their gateways');
        },
      },
    ],
  };
}

function toFinished(row: ServedInvocation): FinishedInvocation {
  return {
    id: row.id,
    queuedAt: new Date(row.queued_at),
    functionId: row.function_id,
    versionId: row.version_id,
    version: row.version,
    source: row.source,
    status: row.status,
    attempt: null,
    startedAt: row.started_at === null ? null : new Date(row.started_at),
    finishedAt: new Date(row.finished_at),
    durationMs: row.duration_ms,
    cold: row.cold,
    error: row.error,
    result: null,
  };
}
