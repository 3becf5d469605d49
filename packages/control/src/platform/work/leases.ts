/** Leases: at most one server holds a name at a time, and another takes over when it is not renewed. */
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';

export interface Leases {
  /** Whether this server holds the lease now. Queries the database only to take or renew it. */
  hold(name: string): Promise<boolean>;
  /** Releases one, so that another server can take it at once. */
  release(name: string): Promise<void>;
  releaseAll(): Promise<void>;
}

/** Without a renewal for this long, another server takes over. */
export const LEASE_MS = 15_000;

/** $1 name, $2 server, $3 milliseconds */
const ACQUIRE = statement<{ name: string }>(
  'lease-acquire',
  `insert into task_leases as l (name, holder, expires_at) values ($1, $2, now() + $3 * interval '1 millisecond')
   on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at
    where l.holder = excluded.holder or l.expires_at <= now()
   returning name`,
);
const RELEASE = statement('lease-release', 'delete from task_leases where name = any($1) and holder = $2');

export function createLeases(on: Queryable, serverId: string, leaseMs = LEASE_MS): Leases {
  /** Until when this server holds them: counted from before the statement, by both clocks. */
  const held = new Map<string, { since: number; time: number }>();

  const ageOf = (lease: { since: number; time: number }): number =>
    // The monotonic clock does not count a suspension of the machine, and the wall clock may be set: the larger counts.
    Math.max(performance.now() - lease.since, Math.abs(Date.now() - lease.time));

  return {
    async hold(name) {
      const known = held.get(name);
      if (known !== undefined && ageOf(known) < leaseMs / 3) return true;
      const now = { since: performance.now(), time: Date.now() };
      const row = await queryOne(on, ACQUIRE, [name, serverId, leaseMs]);
      if (row === undefined) held.delete(name);
      else held.set(name, now);
      return row !== undefined;
    },
    async release(name) {
      if (held.delete(name)) await queryAll(on, RELEASE, [[name], serverId]);
    },
    async releaseAll() {
      const names = [...held.keys()];
      held.clear();
      if (names.length > 0) await queryAll(on, RELEASE, [names, serverId]);
    },
  };
}
