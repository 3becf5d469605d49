/** Leases of sandboxes: the service deletes a sandbox whose client does not renew its lease in time. */
import {
  formatSandboxId,
  operations,
  sandboxNotFound,
  type SandboxId,
  type SandboxLease,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import type { ControlContext } from '../context.ts';
import type { Planes } from '../http/planes.ts';
import { readSandboxId } from './change.ts';
import { followDeletion } from './delete.ts';

/** In a transaction with the insert of the sandbox. */
const INSERT = statement(
  'sandbox-lease-insert',
  `insert into sandbox_leases (sandbox_id, expires_at) values ($1, now() + $2 * interval '1 second')`,
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
     on conflict (sandbox_id) do update set expires_at = excluded.expires_at
     returning expires_at
   )
   select id, region, (select expires_at from renewed) from sandbox`,
);

/** Locks leases and sandboxes until the deletion is committed. What a renewal or a transition has locked is left to the next run. */
const EXPIRED = statement<{ id: string; status: string }>(
  'sandbox-leases-expired',
  `select s.id, s.status from sandbox_leases l join sandboxes s on s.id = l.sandbox_id
    where l.expires_at <= now() order by l.expires_at limit 500 for no key update of l, s skip locked`,
);

/** A lease that was renewed since it was read stays. */
const REMOVE = statement(
  'sandbox-leases-remove',
  'delete from sandbox_leases where sandbox_id = any($1::uuid[]) and expires_at <= now()',
);

export async function insertLease(on: Queryable, id: string, seconds: number): Promise<void> {
  await queryAll(on, INSERT, [id, seconds]);
}

export function leaseRoutes({ workload }: Planes, { database }: Pick<ControlContext, 'database'>): void {
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

type Context = Pick<ControlContext, 'database' | 'lifecycle' | 'snapshots' | 'scheduler' | 'limits' | 'log'>;

/**
 * Deletes the sandboxes whose lease has expired. Not in the first moments of a server: clients could not renew anything
 * while there was none.
 */
export function leaseExpiry(context: Context): () => Promise<void> {
  const { database, lifecycle, limits, log } = context;
  const since = performance.now() + limits.leaseGraceMs;
  return async () => {
    if (performance.now() < since) return;
    const error = 'deleted because its lease expired: its client did not renew it';
    const { expired, moved } = await database.transaction(async (client) => {
      const found = await queryAll(client, EXPIRED);
      const live = found.filter(({ status }) => !ENDED.has(status));
      const deleted = await lifecycle.applyWithin(
        client,
        'delete',
        live.map(({ id }) => ({ id, error })),
      );
      return { expired: found, moved: deleted };
    });
    if (expired.length === 0) return;
    lifecycle.announce(moved);
    for (const { id } of moved) log.info({ vm: id }, 'deleted a sandbox whose lease has expired');
    await followDeletion(context, moved);
    // Only now: until then, the lease is what makes another attempt delete the sandbox.
    await queryAll(database.pool, REMOVE, [expired.map(({ id }) => id)]);
  };
}

const ENDED: ReadonlySet<string> = new Set(['deleting', 'deleted']);
