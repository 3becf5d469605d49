/**
 * Deletes the placeholders of ended sandboxes, so that the table only has those of live ones. A sandbox with a full
 * snapshot keeps them: restored sandboxes have them in their memory.
 */
import { queryAll, statement, type Queryable } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';

/** Over `sandbox_states s`: no process with a placeholder runs there, and none ever will. */
const ENDED = `(s.status = 'deleted' or (s.status = 'failed' and not s.persistent))`;
/** Over `sandbox_states s`. The first conditions are those of the index. */
const NO_SNAPSHOT = `not exists (
  select 1 from snapshot_states n where n.sandbox_id = s.id and n.kind = 'full' and n.status <> 'deleted'
     and n.desired <> 'deleted' and n.status <> 'failed')`;

/** $1 sandboxes */
const DELETE = statement(
  'placeholders-of-ended',
  `delete from sandbox_secrets where sandbox_id in (
     select s.id from sandbox_states s where s.id = any($1::uuid[]) and ${ENDED} and ${NO_SNAPSHOT})`,
);
/** Ended sandboxes of which a stopped server has not deleted the placeholders. */
const DELETE_MISSED = statement(
  'placeholders-missed',
  `delete from sandbox_secrets where sandbox_id in (
     select distinct a.sandbox_id from sandbox_secrets a join sandbox_states s on s.id = a.sandbox_id
      where ${ENDED} and ${NO_SNAPSHOT} limit 1000)`,
);

export interface PlaceholderCleanup {
  /** Deletes those of the sandboxes that have ended since the last call. */
  flush(on: Queryable): Promise<void>;
  deleteMissed(on: Queryable): Promise<void>;
}

export function createPlaceholderCleanup(events: EventBus): PlaceholderCleanup {
  let ended = new Set<string>();
  events.on('sandboxes-changed', (rows) => {
    for (const row of rows)
      if (row.status === 'deleted' || (row.status === 'failed' && !row.persistent)) ended.add(row.id);
  });
  events.on('snapshots-changed', (rows) => {
    // Deleting the last full snapshot releases its sandbox's placeholders.
    for (const row of rows)
      if (row.kind === 'full' && row.status !== 'ready' && row.sandbox_id !== null) ended.add(row.sandbox_id);
  });
  return {
    async flush(on) {
      if (ended.size === 0) return;
      const batch = ended;
      ended = new Set();
      try {
        await queryAll(on, DELETE, [[...batch]]);
      } catch (error) {
        for (const id of batch) ended.add(id);
        throw error;
      }
    },
    async deleteMissed(on) {
      await queryAll(on, DELETE_MISSED);
    },
  };
}
