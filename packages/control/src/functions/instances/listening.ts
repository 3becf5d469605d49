/**
 * Ends the meters of starts: instances whose handlers listen, as their gateways say. A gateway says it once a link, so what cannot be
 * written at once is kept.
 */
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import type { ListeningInstance } from '../../platform/events/event-bus.ts';
import { createWriteQueue, type WriteQueue } from '../../platform/work/write-queue.ts';

/** No meter is open for longer without a charge: PostgreSQL refuses times that are too long ago. */
const FOR_MAX_MS = 30 * 86_400_000;

/**
 * The time is the database's: a gateway that claims more than has passed ends a meter where it was charged last. $1 sandboxes,
 * $2 their gateways, $3 for how many milliseconds their handlers have listened
 */
const CLOSE = statement(
  'function-start-meters-close',
  `select close_start_meters(array_agg(t.id), array_agg(t.for_ms))
     from unnest($1::uuid[], $2::uuid[], $3::double precision[]) as t(id, gateway, for_ms)
     join function_instances i on i.sandbox_id = t.id and i.gateway_id = t.gateway`,
);

export interface EndedStart {
  /** UUID of the instance's sandbox. */
  id: string;
  gatewayId: string;
  /** For how long its handler has listened, in milliseconds, as its gateway says. */
  forMs: number;
}

export async function closeStarts(on: Queryable, instances: readonly EndedStart[]): Promise<void> {
  await queryAll(on, CLOSE, [
    instances.map(({ id }) => id),
    instances.map(({ gatewayId }) => gatewayId),
    instances.map(({ forMs }) => Math.min(Math.max(0, forMs), FOR_MAX_MS)),
  ]);
}

/** Those that cannot be written at once are, when the database answers again. */
export function createListeningStarts(on: Queryable, log: Logger): WriteQueue<ListeningInstance> {
  return createWriteQueue<ListeningInstance>({
    write(batch) {
      const now = performance.now();
      return closeStarts(
        on,
        batch.map(({ id, gatewayId, since }) => ({ id, gatewayId, forMs: now - since })),
      );
    },
    batch: 1_000,
    // Those above are charged until their gateway connects again, or their instance ends.
    most: 100_000,
    key: ({ gatewayId, id }) => `${gatewayId} ${id}`,
    retryMs: 1_000,
    onError: (error, count) => log.warn({ err: error, count }, 'ends of starts cannot be written now'),
  });
}
