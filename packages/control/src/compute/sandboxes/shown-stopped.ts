/**
 * Sandboxes that the facade shows as stopped: they are not persistent, so their stop has deleted them. Their lease, if they have one, is
 * how long they are shown.
 */
import { queryAll, statement, type Queryable } from '@releap/database';

/** Unless it is to be deleted when it stops. One that a client deletes at the same time stays deleted. $1 sandboxes */
const SHOW = statement(
  'compat-stopped-show',
  `update compat_sandboxes c set stopped = true
    where c.sandbox_id = any($1::uuid[]) and c.auto_delete_m is distinct from 0
      and exists (select 1 from sandboxes s where s.id = c.sandbox_id and s.status not in ('deleting', 'deleted'))`,
);

export async function showAsStopped(on: Queryable, ids: readonly string[]): Promise<void> {
  if (ids.length > 0) await queryAll(on, SHOW, [ids]);
}

/** The idle time ends with the stop; a time to live does not. $1 sandboxes */
const LIMIT = statement(
  'compat-stopped-limit',
  `with stopped as (
     select c.sandbox_id,
            least(l.ends_at, case when c.auto_delete_m > 0 then now() + c.auto_delete_m * interval '1 minute' end) as until
       from compat_sandboxes c left join sandbox_leases l on l.sandbox_id = c.sandbox_id
      where c.sandbox_id = any($1::uuid[]) and c.stopped
   ), unlimited as (
     delete from sandbox_leases where sandbox_id in (select sandbox_id from stopped where until is null)
   )
   insert into sandbox_leases (sandbox_id, expires_at) select sandbox_id, until from stopped where until is not null
   on conflict (sandbox_id) do update set expires_at = excluded.expires_at, ends_at = null, idle_s = null`,
);

/** These were stopped: their leases say from now on how long they are shown. */
export async function limitStopped(on: Queryable, ids: readonly string[]): Promise<void> {
  if (ids.length > 0) await queryAll(on, LIMIT, [ids]);
}

const FORGET = statement(
  'compat-stopped-forget',
  'delete from compat_sandboxes where sandbox_id = any($1::uuid[]) and stopped',
);

/** They are shown no longer. */
export async function forgetStopped(on: Queryable, ids: readonly string[]): Promise<void> {
  if (ids.length > 0) await queryAll(on, FORGET, [ids]);
}
