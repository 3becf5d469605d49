/** The SQL of artifacts and their locations. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { statement } from '@releap/database';
import { IS_MADE } from '../images/built-root.ts';
import { LOCATION_EVENTS } from './transitions.ts';

export interface AssignedLocation {
  id: string;
  generation: number;
  desired: 'stored' | 'present' | 'deleted';
  artifact_id: string;
  kind: 'image' | 'snapshot' | 'sandbox';
  digest: string | null;
  sandbox_id: string | null;
}

const CHANGE = 'l.id, l.runner_id, l.generation, l.held as assigned_to_runner';
const ASSIGNED = 'l.id, l.generation, l.desired, l.artifact_id, a.kind, a.digest, a.sandbox_id';

/** $1 runner, $2 id, $3 rows */
export const PAGE = statement<AssignedLocation>(
  'artifact-assignment-page',
  `select ${ASSIGNED} from artifact_locations l join artifacts a on a.id = l.artifact_id
    where l.held and l.runner_id = $1 and l.id > $2 order by l.id limit $3`,
);
/** $1 ids, $2 runner */
export const BY_ID = statement<AssignedLocation>(
  'artifact-assignments-by-id',
  `select ${ASSIGNED} from artifact_locations l join artifacts a on a.id = l.artifact_id
    where l.held and l.id = any($1::uuid[]) and l.runner_id = $2`,
);
/** $1 runners, $2 id, $3 rows */
export const GENERATIONS = statement<{ id: string; runner_id: string; generation: number }>(
  'artifact-generations',
  `select id, runner_id, generation from artifact_locations
    where held and runner_id = any($1::uuid[]) and id > $2 order by id limit $3`,
);

/** Longer than the time between two passes over what has changed, and than any transaction. */
const CHANGED = `s.updated_at > now() - interval '10 minutes'`;

/** Snapshots without an artifact that may have one; each is on the host that took it. */
const registerSnapshots = (name: string, which: string) =>
  statement(
    name,
    `with made as (
     insert into artifacts (id, project_id, kind)
     select s.id, s.project_id, 'snapshot' from snapshot_states s
      where s.status = 'ready' and (s.kind = 'disk' or s.owner_service is not null) and s.held and ${which}
        and not exists (select 1 from artifacts a where a.id = s.id) limit 500
     on conflict (id) do nothing returning id
   )
   insert into artifact_locations (id, artifact_id, runner_id, desired, status, held)
   select gen_random_uuid(), s.id, s.runner_id, 'present', 'present', false from made m join snapshot_states s on s.id = m.id`,
  );
/** $1 snapshots */
export const REGISTER_SNAPSHOTS = registerSnapshots('artifacts-register-snapshots', 's.id = any($1::uuid[])');
export const REGISTER_CHANGED_SNAPSHOTS = registerSnapshots('artifacts-register-changed', CHANGED);
export const REGISTER_ALL_SNAPSHOTS = registerSnapshots('artifacts-register-all', 'true');

/** Images that only the host that built them has, which must not remove them. */
export const REGISTER_IMAGES = statement<AssignmentChange>(
  'artifacts-register-images',
  `with built as (
     select distinct on (i.project_id, i.manifest_name) i.project_id, i.manifest_name as digest, j.runner_id
       from images i join jobs j on j.id = i.job_id join runners r on r.id = j.runner_id
      where ${IS_MADE('i')} and i.status = 'ready' and j.status = 'done' and i.project_id is not null
        and i.manifest_name is not null
        and not exists (select 1 from artifacts a join artifact_locations l on l.artifact_id = a.id
                         where a.project_id = i.project_id and a.digest = i.manifest_name and l.runner_id = j.runner_id)
      order by i.project_id, i.manifest_name limit 500
   ), made as (
     insert into artifacts (id, project_id, kind, digest) select gen_random_uuid(), project_id, 'image', digest from built
     on conflict (project_id, digest) where kind = 'image' do update set unneeded_since = null returning id, project_id, digest
   )
   insert into artifact_locations as l (id, artifact_id, runner_id, desired, status, held)
   select gen_random_uuid(), m.id, b.runner_id, 'present', 'present', true
     from made m join built b on b.project_id = m.project_id and b.digest = m.digest
   on conflict (artifact_id, runner_id) do nothing
   returning ${CHANGE}`,
);

/** Hosts that artifacts can be replicated between. */
export const HOSTS = statement<{ hosts: number }>(
  'artifact-hosts',
  `select count(*)::integer as hosts from runners
    where forgotten_at is null and status <> 'lost' and 'artifact' = any(kinds)`,
);

/** Starts uploads. $1 whether all are stored, not only those that a request waits for, or whose region has a bucket of its own; $2 rows */
export const START_UPLOADS = statement<AssignmentChange>(
  'artifacts-start-uploads',
  `with chosen as (
     select distinct on (a.id) l.id
       from artifacts a join artifact_locations l on l.artifact_id = a.id join runners r on r.id = l.runner_id
      where a.stored_at is null and a.unneeded_since is null
        and (a.wanted or $1::boolean or exists (select 1 from region_stores g where g.region = r.region))
        and l.desired = 'present' and l.status = 'present' and (l.retry_at is null or l.retry_at <= now())
        and r.status = 'online' and 'artifact' = any(r.kinds)
        and not exists (select 1 from artifact_locations o join runners u on u.id = o.runner_id
                         where o.artifact_id = a.id and o.desired = 'stored' and u.status = 'online')
      order by a.id, l.created_at limit $2
   )
   update artifact_locations l set desired = 'stored', held = true, generation = generation + 1, updated_at = now()
     from chosen c where l.id = c.id returning ${CHANGE}`,
);

/** Locked until the end of the transaction. $1 location, $2 runner, $3 generation */
export const LOCK_UPLOAD = statement<{ artifact_id: string; project_id: string; store_id: string }>(
  'artifact-lock-upload',
  `select l.artifact_id, a.project_id, (select store_of_region(r.region) from runners r where r.id = l.runner_id) as store_id
     from artifact_locations l join artifacts a on a.id = l.artifact_id
    where l.id = $1 and l.runner_id = $2 and l.generation = $3 and l.desired = 'stored' for update`,
);
/** $1 artifact, $2 names, $3 digests, $4 bytes, $5 store */
export const STORE_PARTS = statement(
  'artifact-store-parts',
  `with stored as (
     update artifacts set stored_at = now(), store_id = $5, wanted = false, bytes = (select sum(b) from unnest($4::bigint[]) as b)
      where id = $1 and stored_at is null returning id
   )
   insert into artifact_parts (artifact_id, name, digest, bytes)
   select s.id, t.name, t.digest, t.bytes from stored s, unnest($2::text[], $3::text[], $4::bigint[]) as t(name, digest, bytes)`,
);
/** The upload has ended: the host only has it. $1 location, $2 runner, $3 generation, $4 error, $5 pause in milliseconds */
export const END_UPLOAD = statement<AssignmentChange>(
  'artifact-end-upload',
  `with proofs as (delete from artifact_uploads where location_id = $1 and $4::text is null)
   update artifact_locations l set desired = 'present', generation = generation + 1, updated_at = now(),
          held = a.kind = 'image' or a.id not in (select k.id from snapshot_states k where k.runner_id = l.runner_id),
          error = $4, attempts = case when $4::text is null then 0 else l.attempts + 1 end,
          retry_at = case when $4::text is null then null
                          else now() + least($5 * power(2, least(l.attempts, 8)), 3600000) * interval '1 millisecond' end
     from artifacts a
    where a.id = l.artifact_id and l.id = $1 and l.runner_id = $2 and l.generation = $3 and l.desired = 'stored'
   returning ${CHANGE}`,
);

/** $1 location, $2 runner, $3 generation */
export const PRESENT = statement(
  'artifact-present',
  `update artifact_locations l set ${LOCATION_EVENTS.sets('l', 'observe:present')}, error = null, updated_at = now()
    where id = $1 and runner_id = $2 and generation = $3 and desired = 'present' and ${LOCATION_EVENTS.allows('l', 'observe:present')}`,
);
/** The host could not fetch it, or no longer has it. The next placement there tries again. $1 location, $2 runner, $3 generation */
export const LOST = statement<AssignmentChange>(
  'artifact-lost',
  `delete from artifact_locations l
    where l.id = $1 and l.runner_id = $2 and l.generation = $3 and l.desired in ('present', 'deleted')
   returning l.id, l.runner_id, l.generation, false as assigned_to_runner`,
);

/** The artifacts that these sandboxes need on their hosts, where these do not have them. $1 sandboxes */
export const PLACE = statement<AssignmentChange>(
  'artifacts-place',
  `insert into artifact_locations as l (id, artifact_id, runner_id, desired, status, held)
   select distinct on (a.id, s.runner_id) gen_random_uuid(), a.id, s.runner_id, 'present', 'pending', true
     from sandbox_states s join artifacts a on a.id = s.artifact_id
    where s.id = any($1::uuid[]) and s.runner_id is not null
   on conflict (artifact_id, runner_id) do update
     set desired = 'present', held = true, generation = l.generation + 1, updated_at = now(),
         ${LOCATION_EVENTS.sets('l', 'place')} where l.desired = 'deleted'
   returning ${CHANGE}`,
);

/**
 * What this sandbox, which does not run, has on its host: the host uploads it at once. $1 artifact, $2 sandbox, $3 its project, $4 host,
 * $5 MiB of the largest blob
 */
export const STORE_SANDBOX = statement<AssignmentChange>(
  'artifact-store-sandbox',
  `with made as (
     insert into artifacts (id, sandbox_id, project_id, kind, wanted, blob_max_mib) values ($1, $2, $3, 'sandbox', true, $5) returning id
   )
   insert into artifact_locations as l (id, artifact_id, runner_id, desired, status, held)
   select gen_random_uuid(), m.id, $4::uuid, 'stored', 'present', true from made m
   returning ${CHANGE}`,
);
/** This host fetches the artifact. $1 artifact, $2 host */
export const FETCH = statement<AssignmentChange>(
  'artifact-fetch',
  `insert into artifact_locations as l (id, artifact_id, runner_id, desired, status, held)
   values (gen_random_uuid(), $1, $2, 'present', 'pending', true)
   returning ${CHANGE}`,
);
/** Nothing needs it any more: it is removed from the store and from hosts. $1 artifacts */
export const RELEASE = statement(
  'artifacts-release',
  'update artifacts set unneeded_since = coalesce(unneeded_since, now()) where id = any($1::uuid[])',
);

/** A request needs it in the store. $1 artifact */
export const WANT = statement(
  'artifact-want',
  `update artifacts set wanted = true where id = $1 and stored_at is null and not wanted`,
);

/** Those of sandboxes are needed until they are released. */
const NEEDED = `case kind when 'snapshot' then exists (select 1 from snapshot_states s where s.id = a.id and s.status = 'ready')
  else exists (select 1 from images i where i.project_id = a.project_id and i.manifest_name = a.digest)
    or exists (select 1 from function_roots r where r.digest = a.digest and r.project_id = a.project_id)
    or exists (select 1 from sandbox_states s where s.held and s.root_digest = a.digest and s.project_id = a.project_id)
    or exists (select 1 from snapshot_states s where s.held and s.root_digest = a.digest and s.project_id = a.project_id) end`;
const markUnneeded = (name: string, which: string) =>
  statement(
    name,
    `update artifacts m set unneeded_since = case when n.needed then null else coalesce(unneeded_since, now()) end
       from (select a.id, ${NEEDED} as needed from artifacts a where a.kind <> 'sandbox' and ${which} offset 0) n
      where m.id = n.id and (m.unneeded_since is null) <> n.needed`,
  );
export const MARK_ALL = markUnneeded('artifacts-mark-all', 'true');
/** Those of snapshots that have changed, and those that are marked. */
export const MARK_CHANGED = markUnneeded(
  'artifacts-mark-changed',
  `a.id in (select s.id from snapshot_states s where ${CHANGED}
            union all select m.id from artifacts m where m.unneeded_since is not null)`,
);
/** Unneeded artifacts: images after a while, others at once. $1 milliseconds, $2 rows */
export const UNNEEDED = statement<{ id: string }>(
  'artifacts-unneeded',
  `select id from artifacts where unneeded_since <= now() - case kind when 'image' then $1 else 0 end * interval '1 millisecond'
    order by unneeded_since limit $2`,
);
/** Their parts are no longer named, and their hosts remove them. $1 artifacts */
export const REMOVE_LOCATIONS = statement<AssignmentChange>(
  'artifacts-remove-locations',
  `with parts as (delete from artifact_parts where artifact_id = any($1::uuid[])),
   unstored as (update artifacts set stored_at = null where id = any($1::uuid[]) and stored_at is not null)
   update artifact_locations l set desired = 'deleted', held = true, generation = generation + 1, updated_at = now()
    where l.artifact_id = any($1::uuid[]) and l.desired <> 'deleted' and l.held returning ${CHANGE}`,
);
/** Locations that no host will report, of snapshots on the host that took them: it removes the snapshot itself. $1 artifacts */
export const FORGET_OWN_LOCATIONS = statement(
  'artifacts-forget-own-locations',
  'delete from artifact_locations where not held and artifact_id = any($1::uuid[])',
);
/** Locations on forgotten hosts. Reads none when no host is forgotten. */
export const FORGET_LOCATIONS = statement(
  'artifacts-forget-locations',
  'delete from artifact_locations l using runners r where r.id = l.runner_id and r.forgotten_at is not null',
);
/** $1 artifacts */
export const REMOVE_ARTIFACTS = statement(
  'artifacts-remove',
  `delete from artifacts a where a.id = any($1::uuid[]) and not exists (select 1 from artifact_locations l where l.artifact_id = a.id)`,
);
