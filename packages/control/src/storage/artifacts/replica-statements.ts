/** The SQL of replicas: locations of artifacts in stores other than that of their home copy. */
import { statement } from '@releap/database';
import { WorkTable } from '../../platform/work/work-table.ts';
import { LOCATION_EVENTS } from './transitions.ts';

/** One attempt to copy an artifact into a store. */
export interface Replication {
  id: string;
  attempts: number;
}

export interface ClaimedReplication extends Replication {
  artifact_id: string;
  org_id: string;
  source_id: string;
  target_id: string;
}

const ORGANIZATION =
  '(select p.org_id from artifacts o join projects p on p.id = o.project_id where o.id = w.artifact_id)';

/** A replica that is not there yet is work as long as its row exists: it has no last attempt. */
export const REPLICATIONS = new WorkTable<Replication>({
  name: 'replications',
  table: 'artifact_locations',
  key: { id: 'uuid' },
  fence: { attempts: 'integer' },
  attempt: 'attempts',
  claimed: `w.store_id is not null and w.status = 'pending'`,
  queue: {
    // Not for a store whose regions are all disabled: nothing is created there.
    due: `w.store_id is not null and w.status = 'pending' and w.lease_until <= now()
      and exists (select 1 from artifacts a where a.id = w.artifact_id and a.stored_at is not null and a.unneeded_since is null)
      and exists (select 1 from regions r where r.enabled and store_of_region(r.id) = w.store_id)`,
    order: 'w.created_at',
    organization: ORGANIZATION,
  },
});

/** $1 milliseconds, $2 rows */
export const CLAIM = REPLICATIONS.claiming<ClaimedReplication>('claim', {
  pick: REPLICATIONS.turns('$2'),
  returning: `w.id, w.attempts, w.artifact_id, w.store_id as target_id, ${ORGANIZATION} as org_id,
     (select a.store_id from artifacts a where a.id = w.artifact_id) as source_id`,
});
/** $1, $2 claims */
export const FINISH = REPLICATIONS.changing<{ id: string }>('finish', {
  set: `${LOCATION_EVENTS.sets('w', 'observe:present')}, error = null, lease_until = null, used_at = now(), updated_at = now()`,
});
/** $1, $2 claims, $3 milliseconds until the next attempt, $4 error */
export const RETRY = REPLICATIONS.changing<{ id: string }>('retry', {
  set: `${REPLICATIONS.until('$3')}, error = $4, updated_at = now()`,
});
/** Another server may take them at once. $1, $2 claims */
export const RELEASE = REPLICATIONS.changing<{ id: string }>('release', {
  set: 'lease_until = now(), attempts = w.attempts - 1, updated_at = now()',
});

/**
 * A request needs the artifact in the store of a region. One that is not stored yet is copied once it is, unless the hosts that have it
 * use the same store. $1 artifact, $2 region
 */
export const REPLICATE = statement<{ id: string }>(
  'replica-wanted',
  `insert into artifact_locations as l (id, artifact_id, store_id, desired, status, held, lease_until, used_at)
   select gen_random_uuid(), a.id, t.id, 'present', 'pending', false, now(), now()
     from artifacts a cross join (select store_of_region($2) as id offset 0) t
    where a.id = $1 and a.unneeded_since is null
      and case when a.stored_at is not null then a.store_id <> t.id
          else not exists (select 1 from artifact_locations h join runners r on r.id = h.runner_id
                            where h.artifact_id = a.id and h.status = 'present' and store_of_region(r.region) = t.id) end
   on conflict (artifact_id, store_id) where store_id is not null do update set used_at = now()
   returning id`,
);

/** SQL: the store of a region has the artifact `a`. */
export const inStoreOf = (store: string): string =>
  `(a.stored_at is not null and (a.store_id = ${store}
      or exists (select 1 from artifact_locations c where c.artifact_id = a.id and c.store_id = ${store} and c.status = 'present')))`;

/** How an artifact is to be had in a region. */
export interface Availability {
  id: string;
  /** The store of the region has it. */
  stored: boolean;
  /** A host of the region has it. */
  held: boolean;
  /** The store of the region has a replica of which it was not written for a while that it is used. */
  stale: boolean;
  /** Why it is not in the store of the region yet, where that is known. */
  trouble: string | null;
}

const availability = (name: string, which: string) =>
  statement<Availability>(
    name,
    `select a.id, ${inStoreOf('t.id')} as stored,
            exists (select 1 from artifact_locations l join runners r on r.id = l.runner_id
                     where l.artifact_id = a.id and l.status = 'present' and l.desired <> 'deleted' and r.region = $1) as held,
            exists (select 1 from artifact_locations c
                     where c.artifact_id = a.id and c.store_id = t.id and c.used_at < now() - interval '1 hour') as stale,
            coalesce(
              (select l.error from artifact_locations l where l.artifact_id = a.id and l.store_id = t.id),
              case when a.stored_at is null then coalesce(
                (select 'its host could not upload it' from artifact_locations l
                  where l.artifact_id = a.id and l.runner_id is not null and l.error is not null limit 1),
                case when not exists (select 1 from artifact_locations l join runners r on r.id = l.runner_id
                                       where l.artifact_id = a.id and l.status = 'present' and r.status = 'online')
                  then 'no host that has it is connected' end) end) as trouble
       from artifacts a cross join (select store_of_region($1) as id offset 0) t where ${which}`,
  );
/** $1 region, $2 project, $3 digest */
export const OF_IMAGE = availability(
  'artifact-image',
  `a.kind = 'image' and a.project_id = $2 and a.digest = $3`,
);
/** $1 region, $2 artifact */
export const OF_ARTIFACT = availability('artifact-available', 'a.id = $2');

/** A create or a host uses the replica. $1 artifact, $2 region */
export const USED = statement(
  'replica-used',
  'update artifact_locations set used_at = now() where artifact_id = $1 and store_id = store_of_region($2)',
);

/**
 * Replicas that nothing needs: no region uses their store, or they were not asked for as long and no sandbox, running or not, is made
 * from them in a region of the store. $1 milliseconds, $2 rows
 */
export const REMOVE_UNUSED = statement<{ id: string }>(
  'replicas-remove-unused',
  `delete from artifact_locations l where l.id in (
     select c.id from artifact_locations c join artifacts a on a.id = c.artifact_id
      where c.store_id is not null
        and (not exists (select 1 from regions r where store_of_region(r.id) = c.store_id)
          or c.used_at < now() - $1 * interval '1 millisecond'
            and not exists (select 1 from sandbox_states s
                             where s.project_id = a.project_id and s.artifact_id = a.id and s.status <> 'deleted'
                               and store_of_region(s.region) = c.store_id))
      limit $2) returning l.id`,
);

/** Stores that no region uses and that have nothing. */
export const REMOVE_STORES = statement<{ id: string }>(
  'stores-remove',
  `delete from stores s where s.bucket is not null
      and not exists (select 1 from region_stores r where r.store_id = s.id)
      and not exists (select 1 from artifacts a where a.store_id = s.id)
      and not exists (select 1 from artifact_locations l where l.store_id = s.id)
      and not exists (select 1 from store_blobs b where b.store_id = s.id) returning s.id`,
);

/** $1 artifact */
export const PARTS = statement<{ digest: string; bytes: string }>(
  'replica-parts',
  'select distinct digest, bytes from artifact_parts where artifact_id = $1 order by digest',
);
