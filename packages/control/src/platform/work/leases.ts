/** Leases of periodic tasks: at most one server holds a name at a time, and another takes over when it is not renewed. */
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { WorkTable } from './work-table.ts';

export interface Leases {
  /**
   * Whether this server holds the lease now. Queries the database only to take or renew it: a server that was refused asks again after
   * a third of a lease, or when that of the holder ends.
   * @param isAsked asks the database in any case, unless this server holds it
   */
  hold(name: string, isAsked?: boolean): Promise<boolean>;
  /** Releases one, so that another server can take it. */
  release(name: string): Promise<void>;
  releaseAll(): Promise<void>;
  /** To be called when another server has released some. */
  lookAgain(): void;
}

/** Without a renewal for this long, another server takes over. */
export const LEASE_MS = 15_000;

interface Lease {
  name: string;
  holder: string;
}

const LEASES = new WorkTable<Lease>({
  name: 'task-leases',
  table: 'task_leases',
  key: { name: 'text' },
  fence: { holder: 'uuid' },
  deadline: 'expires_at',
  claimed: 'true',
});

/** `left`: until another's lease ends, in milliseconds. $1 name, $2 server, $3 milliseconds */
const ACQUIRE = statement<{ held: boolean; left: number | null }>(
  'task-leases-acquire',
  `with held as (
     insert into task_leases as w (name, holder, expires_at) values ($1, $2, now() + $3 * interval '1 millisecond')
     on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at
      where w.holder = excluded.holder or ${LEASES.expired('w')}
     returning 1
   )
   select exists (select 1 from held) as held,
          (select extract(epoch from expires_at - now())::double precision * 1000 from task_leases where name = $1) as left`,
);
const RELEASE = LEASES.changing('release', {});

/** The kind of change with which servers tell each other that they have released leases. */
export const LEASES_RELEASED = 'task-leases';

/** @param onReleased called when this server has released some that others may take */
export function createLeases(
  on: Queryable,
  serverId: string,
  leaseMs = LEASE_MS,
  onReleased?: () => void,
): Leases {
  /** Until when this server holds them: counted from before the statement, by both clocks. */
  const held = new Map<string, { since: number; time: number }>();
  /** When this server asks again for what another one holds, on the monotonic clock. */
  const refused = new Map<string, number>();

  const ageOf = (lease: { since: number; time: number }): number =>
    // The monotonic clock does not count a suspension of the machine, and the wall clock may be set: the larger counts.
    Math.max(performance.now() - lease.since, Math.abs(Date.now() - lease.time));
  const release = async (names: readonly string[]): Promise<void> => {
    await queryAll(on, RELEASE, LEASES.values(names.map((name) => ({ name, holder: serverId }))));
    onReleased?.();
  };

  return {
    async hold(name, isAsked = false) {
      const known = held.get(name);
      if (known !== undefined && ageOf(known) < leaseMs / 3) return true;
      const now = { since: performance.now(), time: Date.now() };
      if (!isAsked && (refused.get(name) ?? 0) > now.since) return false;
      const row = await queryOne(on, ACQUIRE, [name, serverId, leaseMs]);
      if (row?.held === true) {
        held.set(name, now);
        refused.delete(name);
        return true;
      }
      held.delete(name);
      refused.set(name, now.since + Math.max(0, Math.min(leaseMs / 3, row?.left ?? leaseMs / 3)));
      return false;
    },
    async release(name) {
      if (held.delete(name)) await release([name]);
    },
    async releaseAll() {
      const names = [...held.keys()];
      held.clear();
      if (names.length > 0) await release(names);
    },
    lookAgain: () => refused.clear(),
  };
}
