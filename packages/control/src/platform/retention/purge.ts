/**
 * Purges ended rows after their retention, in bounded batches. The ledger is never purged; the audit log is dropped by
 * partitions (partitions.ts); idempotency keys have their own expiry.
 */
import { queryAll, statement, type Database, type Statement } from '@releap/database';

interface Purge {
  what: string;
  statement: Statement<{ id: string }>;
}

const purge = (what: string, sql: string): Purge => ({
  what,
  statement: statement<{ id: string }>(`purge-${what}`, sql),
});

/** $1 days, $2 rows. In this order: a sandbox stays until its snapshots are purged. */
const PURGES: readonly Purge[] = [
  purge(
    'snapshots',
    `delete from snapshots where id in (
       select id from snapshots
        where status in ('deleted', 'failed') and not held and updated_at < now() - $1 * interval '1 day'
        order by updated_at limit $2 for update skip locked)
     returning id`,
  ),
  purge(
    // A full snapshot is restored with the secrets of the sandbox that it was taken of.
    'sandboxes',
    `with ended as (
       select s.id from sandboxes s
        where s.status = 'deleted' and not s.held and s.deleted_at < now() - $1 * interval '1 day'
          and not exists (select 1 from snapshots k where k.sandbox_id = s.id)
        order by s.deleted_at limit $2 for update skip locked
     ), secrets as (
       delete from sandbox_secrets where sandbox_id in (select id from ended)
     ), readings as (
       delete from cpu_readings where sandbox_id in (select id from ended)
     )
     delete from sandboxes where id in (select id from ended) returning id`,
  ),
  purge(
    'object-stores',
    `delete from object_stores where id in (
       select o.id from object_stores o
        where o.deleted_at < now() - $1 * interval '1 day'
          and not exists (select 1 from object_store_mounts m where m.object_store_id = o.id)
        order by o.deleted_at limit $2 for update skip locked)
     returning id`,
  ),
  purge(
    'volumes',
    `delete from volumes where id in (
       select v.id from volumes v
        where v.deleted_at < now() - $1 * interval '1 day' and v.erased_at is not null
          and not exists (select 1 from volume_attachments a where a.volume_id = v.id)
        order by v.deleted_at limit $2 for update skip locked)
     returning id`,
  ),
  purge(
    'jobs',
    `delete from jobs where id in (
       select id from jobs where finished_at < now() - $1 * interval '1 day' order by finished_at limit $2 for update skip locked)
     returning id`,
  ),
  purge(
    'invitations',
    `delete from invitations where id in (
       select id from invitations
        where coalesce(accepted_at, expires_at) < now() - $1 * interval '1 day' limit $2 for update skip locked)
     returning id`,
  ),
];

const BATCH = 500;

/**
 * @param days how long ended rows are kept
 * @returns the number of removed rows by resource
 * @throws AggregateError after trying all
 */
export async function purgeEnded(
  database: Database,
  days: number,
  signal: AbortSignal,
  batch = BATCH,
): Promise<Record<string, number>> {
  const removed: Record<string, number> = {};
  const failures: Error[] = [];
  for (const { what, statement: run } of PURGES) {
    try {
      for (;;) {
        if (signal.aborted) return removed;
        const rows = await queryAll(database.pool, run, [days, batch]);
        if (rows.length > 0) removed[what] = (removed[what] ?? 0) + rows.length;
        if (rows.length < batch) break;
      }
    } catch (error) {
      // One failure does not stop the others.
      failures.push(new Error(`${what} could not be purged`, { cause: error }));
    }
  }
  if (failures.length > 0) throw new AggregateError(failures, failures.map((one) => one.message).join('; '));
  return removed;
}

/** Lost hosts without references. $1 days */
const RUNNERS = statement<{ id: string }>(
  'purge-runners',
  `delete from runners where id in (
       select r.id from runners r
        where r.status = 'lost' and r.last_seen_at < now() - $1 * interval '1 day'
          and not exists (select 1 from sandboxes s where s.runner_id = r.id)
          and not exists (select 1 from snapshots s where s.runner_id = r.id)
        limit 100 for update skip locked)
     returning id`,
);

/**
 * Forgets lost hosts. May scan all sandboxes for each long-lost host (an index on their host would make every transition
 * more expensive), so it runs rarely.
 */
export async function purgeLostRunners(database: Database, days: number): Promise<number> {
  return (await queryAll(database.pool, RUNNERS, [days])).length;
}

/** $1 days, $2 rows */
const OPERATOR_AUDIT = statement<{ id: string }>(
  'purge-operator-audit',
  `delete from operator_audit where id in (
     select id from operator_audit where created_at < now() - $1 * interval '1 day' order by created_at limit $2)
   returning id`,
);

/** In batches, until none is left. @returns the number of removed entries */
export async function purgeOperatorAudit(
  database: Database,
  days: number,
  signal: AbortSignal,
  batch = BATCH,
): Promise<number> {
  for (let removed = 0; ; ) {
    if (signal.aborted) return removed;
    const { length } = await queryAll(database.pool, OPERATOR_AUDIT, [days, batch]);
    removed += length;
    if (length < batch) return removed;
  }
}
