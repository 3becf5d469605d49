/** Which commits are kept: the newest, all of the last hour, and one an hour of the last days. */
import { queryAll, statement, type Database } from '@releap/database';

const KEPT = 10;
const BATCH = 5_000;
const ALL_KEPT_MS = 3_600_000;

/** $1 milliseconds, $2 newest commits that stay, $3 rows, $4 milliseconds after which one an hour stays, the last */
const OLD = statement<{ volume_id: string }>(
  'volume-history-old',
  `delete from volume_manifests where (volume_id, number) in (
     select m.volume_id, m.number from volume_manifests m join volumes v on v.id = m.volume_id
      where m.number <= v.head - $2::integer
        and (m.created_at < now() - $1 * interval '1 millisecond'
          or (m.created_at < now() - $4 * interval '1 millisecond'
            and exists (select 1 from volume_manifests n
                         where n.volume_id = m.volume_id and n.number > m.number
                           and n.created_at >= m.created_at and n.created_at < date_trunc('hour', m.created_at) + interval '1 hour')))
      limit $3)
   returning volume_id`,
);
/** Packs that only removed manifests named. $1 volumes */
const UNNAMED = statement(
  'volume-history-unnamed',
  `delete from volume_blobs b where b.volume_id = any($1::uuid[]) and b.last is not null
      and not exists (select 1 from volume_manifests m
                       where m.volume_id = b.volume_id and m.number between b.first and b.last)`,
);
/** Of commits that were never made. $1 milliseconds */
const STALE_UPLOADS = statement(
  'volume-history-uploads',
  `delete from volume_uploads where created_at < now() - $1 * interval '1 millisecond'`,
);
const CONFLICTS_KEPT = 1_000;
/** $1 conflicts of one volume that stay */
const OLD_CONFLICTS = statement(
  'volume-history-conflicts',
  `delete from volume_conflicts c using volumes v
    where v.id = c.volume_id
      and c.id <= (select k.id from volume_conflicts k where k.volume_id = v.id order by k.id desc offset $1 limit 1)`,
);

/** The store's garbage collector removes what no row names any more. Safe to repeat, and to be interrupted. */
export async function removeOldCommits(
  database: Database,
  { historyMs, uploadMs }: { historyMs: number; uploadMs: number },
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    signal.throwIfAborted();
    const removed = await database.transaction(async (on) => {
      const rows = await queryAll(on, OLD, [historyMs, KEPT, BATCH, ALL_KEPT_MS]);
      const volumes = [...new Set(rows.map(({ volume_id }) => volume_id))];
      if (volumes.length > 0) await queryAll(on, UNNAMED, [volumes]);
      return rows.length;
    });
    if (removed < BATCH) break;
  }
  await queryAll(database.pool, STALE_UPLOADS, [uploadMs]);
  await queryAll(database.pool, OLD_CONFLICTS, [CONFLICTS_KEPT]);
}
