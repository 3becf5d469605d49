import type { SandboxRow } from '@releap/database';
import { startSpan } from '@releap/tracing';
import type { SandboxEvent } from './transitions.ts';

/** Steps of a start, from the creation of the row. Both times are the database's. */
const STEPS: Partial<Record<SandboxEvent, string>> = {
  place: 'place sandbox',
  'observe:running': 'start sandbox',
  'observe:failed': 'start sandbox',
};

/** Continues the trace of the request that created a sandbox, until it runs or has failed. */
export function traceTransition(event: SandboxEvent, row: SandboxRow): void {
  const name = STEPS[event];
  const { traceparent } = row.spec;
  // Later starts belong to other requests.
  if (name === undefined || traceparent === undefined || row.generation > 1) return;
  const span = startSpan(name, {
    parent: traceparent,
    startTime: row.created_at,
    attributes: { 'releap.sandbox.id': row.id, 'releap.region': row.region },
  });
  if (row.status === 'failed') span?.fail(row.error ?? 'failed');
  span?.end(row.updated_at);
}
