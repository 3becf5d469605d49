/**
 * Leases of sandboxes: the service deletes a sandbox whose client does not renew its lease in time. Those of the facade may have an
 * idle time, which activity renews; they are then stopped, and their leases end how long they are shown as stopped.
 */
import type { Database } from '@releap/database';
import type { Lifecycle } from './lifecycle.ts';
import type { Logger } from 'pino';
import type { Scheduler } from '../scheduler/scheduler.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import {
  formatSandboxId,
  operations,
  sandboxNotFound,
  type SandboxId,
  type SandboxLease,
  type SandboxStatus,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { forgetStopped, limitStopped, showAsStopped } from './shown-stopped.ts';
import { readSandboxId } from './change.ts';
import { followDeletion } from './delete.ts';

/** In a transaction with the insert of the sandbox. $1 sandbox, $2 seconds in all, $3 seconds without activity; null: any */
const INSERT = statement(
  'sandbox-lease-insert',
  `insert into sandbox_leases (sandbox_id, expires_at, ends_at, idle_s)
   select $1::uuid, least(ends_at, now() + $3::integer * interval '1 second'), ends_at, $3::integer
     from (select now() + $2::integer * interval '1 second' as ends_at) lease`,
);

/**
 * Sets, renews, or ends with a null, the lease of a tenant's sandbox that is not deleted. The lock on its row orders this with
 * the expiry of leases: either the lease is renewed and the sandbox stays, or the client learns that it is deleted.
 */
const SET = statement<{ id: string; region: string; expires_at: Date | null }>(
  'sandbox-lease-set',
  `with sandbox as (
     select id, region from sandboxes
      where id = $1 and project_id = $2 and owner_kind = 'project' and ($3::text is null or region = $3)
        and status not in ('deleting', 'deleted') for share
   ), ended as (
     delete from sandbox_leases where $4::integer is null and sandbox_id in (select id from sandbox)
   ), renewed as (
     insert into sandbox_leases (sandbox_id, expires_at)
     select id, now() + $4 * interval '1 second' from sandbox where $4::integer is not null
     on conflict (sandbox_id) do update set expires_at = excluded.expires_at, ends_at = null, idle_s = null
     returning expires_at
   )
   select id, region, (select expires_at from renewed) from sandbox`,
);

interface Expired {
  id: string;
  status: SandboxStatus;
  idle_s: number | null;
  /** Its idle time alone is over. */
  is_idle: boolean;
}

const IS_IDLE = `l.idle_s is not null and (l.ends_at > now()) is not false`;

/**
 * Locks leases and sandboxes until the deletion is committed. What a renewal or a transition has locked is left to the next run.
 * The idle time of a sandbox begins when it runs: a build may take longer.
 */
const EXPIRED = statement<Expired>(
  'sandbox-leases-expired',
  `select s.id, s.status, l.idle_s, ${IS_IDLE} as is_idle from sandbox_leases l join sandboxes s on s.id = l.sandbox_id
    where l.expires_at <= now()
      and (not (${IS_IDLE}) or s.status not in ('pending', 'assigned', 'building', 'booting', 'running')
           or (s.status = 'running' and s.updated_at + l.idle_s * interval '1 second' <= now()))
    order by l.expires_at limit 500 for no key update of l, s skip locked`,
);

/** A lease that was renewed since it was read stays. */
const REMOVE = statement(
  'sandbox-leases-remove',
  'delete from sandbox_leases where sandbox_id = any($1::uuid[]) and expires_at <= now()',
);

/** At least one of them, in seconds. */
export interface NewLease {
  /** Unless it is renewed. */
  seconds?: number | undefined;
  /** Without activity. */
  idleSeconds?: number | undefined;
}

export async function insertLease(
  on: Queryable,
  id: string,
  { seconds, idleSeconds }: NewLease,
): Promise<void> {
  await queryAll(on, INSERT, [id, seconds ?? null, idleSeconds ?? null]);
}

export function leaseRoutes({ workload }: Planes, { database }: { database: Database }): void {
  workload.operation(operations.leaseSandbox, async ({ params, body, principal }): Promise<SandboxLease> => {
    const { uuid, region }: SandboxId = readSandboxId(params.id);
    const row = await queryOne(database.pool, SET, [uuid, principal.projectId, region, body.lease_s]);
    if (row === undefined) throw sandboxNotFound(params.id);
    return {
      vm_id: formatSandboxId(row.region, row.id),
      lease_expires_at: row.expires_at?.toISOString() ?? null,
    };
  });
}

type Context = {
  database: Database;
  lifecycle: Lifecycle;
  limits: { leaseGraceMs: number };
  log: Logger;
  scheduler: Scheduler;
  snapshots: Snapshots;
};

/**
 * Deletes the sandboxes whose lease has expired. Not in the first moments of a server: clients could not renew anything
 * while there was none.
 */
export function leaseExpiry(context: Context): () => Promise<void> {
  const { database, lifecycle, limits, log } = context;
  const since = performance.now() + limits.leaseGraceMs;
  return async () => {
    if (performance.now() < since) return;
    const { expired, moved } = await database.transaction(async (client) => {
      const found = await queryAll(client, EXPIRED);
      // Idle ones that failed have nothing to stop, and their reason is still of use.
      const due = found.filter(
        ({ status, is_idle: isIdle }) => !ENDED.has(status) && (!isIdle || status === 'running'),
      );
      await showAsStopped(
        client,
        due.filter(({ is_idle: isIdle }) => isIdle).map(({ id }) => id),
      );
      const ended = await lifecycle.applyWithin(
        client,
        'delete',
        due.map((lease) => ({ id: lease.id, error: reasonOf(lease) })),
      );
      return { expired: found, moved: ended };
    });
    if (expired.length === 0) return;
    lifecycle.announce(moved);
    for (const { id } of moved) log.info({ vm: id }, 'ended a sandbox whose lease has expired');
    await followDeletion(context, moved);
    const [idle, over] = [
      expired.filter(({ is_idle: isIdle }) => isIdle),
      expired.filter(({ is_idle: isIdle }) => !isIdle),
    ];
    await forgetStopped(
      database.pool,
      over.map(({ id }) => id),
    );
    await limitStopped(
      database.pool,
      idle.map(({ id }) => id),
    );
    // Only now: until then, the lease is what makes another attempt delete the sandbox.
    await queryAll(database.pool, REMOVE, [expired.map(({ id }) => id)]);
  };
}

const ENDED: ReadonlySet<SandboxStatus> = new Set(['deleting', 'deleted']);

const reasonOf = ({ idle_s: idle, is_idle: isIdle }: Expired): string =>
  isIdle
    ? `stopped after ${(idle ?? 0) / 60} minutes without activity`
    : 'deleted because its lease expired: its client did not renew it';
