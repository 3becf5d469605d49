/**
 * Ends the meters of starts: instances whose handlers listen, as their gateways say. A gateway says it once a link, so what cannot be
 * written at once is kept and written by the next pass.
 */
import { queryAll, statement, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import type { ListeningInstance } from '../../platform/events/event-bus.ts';

/** Starts whose end is not written yet. Those above are charged until their gateway connects again, or their instance ends. */
const PENDING_MAX = 100_000;
const BATCH = 1_000;
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

export interface ListeningStarts {
  /** Writes them as soon as possible. */
  add(instances: readonly ListeningInstance[]): void;
  /** Writes what is left. */
  flush(): Promise<void>;
}

export function createListeningStarts(on: Queryable, log: Logger): ListeningStarts {
  /** By gateway and sandbox. */
  const pending = new Map<string, ListeningInstance>();
  let flushing: Promise<void> | undefined;

  /** Those that are added meanwhile are in its next batch. */
  async function write(): Promise<void> {
    while (pending.size > 0) {
      const batch = [...pending.entries().take(BATCH)];
      const now = performance.now();
      await closeStarts(
        on,
        batch.map(([, { id, gatewayId, since }]) => ({ id, gatewayId, forMs: now - since })),
      );
      for (const [key, instance] of batch) if (pending.get(key) === instance) pending.delete(key);
    }
  }

  function flush(): Promise<void> {
    flushing ??= write().finally(() => {
      flushing = undefined;
    });
    return flushing;
  }

  return {
    add(instances) {
      for (const instance of instances) {
        if (pending.size >= PENDING_MAX) break;
        pending.set(`${instance.gatewayId} ${instance.id}`, instance);
      }
      flush().catch((error: unknown) =>
        log.warn({ err: error, count: pending.size }, 'ends of starts cannot be written now'),
      );
    },
    flush,
  };
}
