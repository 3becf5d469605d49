import { badRequest, internalOperations, type ServedInvocation } from '@releap/contract';
import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { recordFinished, type FinishedInvocation } from './store.ts';

/** Invocations that gateways have served for clients that waited. */
export function gatewayRecordsModule({ database, billing }: ControlContext): Module {
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
    },
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
