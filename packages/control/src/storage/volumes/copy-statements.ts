/** The SQL of copies of volumes on hosts. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { statement } from '@releap/database';

export interface AssignedCopy {
  id: string;
  generation: number;
  desired: 'present' | 'deleted';
  size_gb: number;
  commit_request: number;
  number: number;
  root: string | null;
  root_bytes: string | null;
}

const CHANGE = 'c.volume_id as id, c.runner_id, c.generation, true as assigned_to_runner';
const ASSIGNED = `c.volume_id as id, c.generation, c.desired, v.size_gb, v.commit_request, v.head as number, m.root, b.bytes as root_bytes
  from volume_copies c join volumes v on v.id = c.volume_id
  left join volume_manifests m on m.volume_id = v.id and m.number = v.head left join blobs b on b.digest = m.root`;

/** $1 runner, $2 volume, $3 rows */
export const PAGE = statement<AssignedCopy>(
  'volume-copies-page',
  `select ${ASSIGNED} where c.runner_id = $1 and c.volume_id > $2 order by c.volume_id limit $3`,
);
/** $1 volumes, $2 runner */
export const BY_ID = statement<AssignedCopy>(
  'volume-copies-by-id',
  `select ${ASSIGNED} where c.volume_id = any($1::uuid[]) and c.runner_id = $2`,
);
/** A volume may be on several hosts: all of its rows are on one page, which may be longer. $1 runners, $2 volume, $3 rows */
export const GENERATIONS = statement<{ id: string; runner_id: string; generation: number }>(
  'volume-copies-generations',
  `select volume_id as id, runner_id, generation from volume_copies
    where runner_id = any($1::uuid[]) and volume_id > $2 order by volume_id fetch first $3 rows with ties`,
);

/** These sandboxes were placed: their hosts may have copies of their volumes. $1 sandboxes */
export const PLACE = statement<AssignmentChange>(
  'volume-copies-place',
  `with placed as (
     select distinct a.volume_id, s.runner_id from sandbox_states s join volume_attachments a on a.sandbox_id = s.id
      where s.id = any($1::uuid[]) and s.runner_id is not null
   ), used as (
     update volumes v set last_used_at = now() where v.id in (select volume_id from placed)
   )
   insert into volume_copies as c (volume_id, runner_id)
   select volume_id, runner_id from placed order by volume_id, runner_id
   -- Locked, so that it is not forgotten meanwhile.
   on conflict (volume_id, runner_id) do update set updated_at = now()
   returning ${CHANGE}`,
);

/** Hosts are to remove their copies. $1 volumes */
export const DELETE_COPIES = statement<AssignmentChange>(
  'volume-copies-delete',
  `update volume_copies c set desired = 'deleted', generation = generation + 1, updated_at = now()
    where c.volume_id = any($1::uuid[]) and c.desired <> 'deleted' returning ${CHANGE}`,
);

/** The head has moved, or a commit was requested: it is assigned to all hosts but one. $1 volume, $2 the host that has it already, or null */
export const TELL = statement<AssignmentChange>(
  'volume-copies-tell',
  `update volume_copies c set generation = generation + 1, updated_at = now()
    where c.volume_id = $1 and c.desired = 'present' and c.runner_id is distinct from $2 returning ${CHANGE}`,
);

/**
 * The report of a host of its copy, of any generation: reports of a host arrive in order. $1 volume, $2 runner, $3 present,
 * $4 number, $5 dirty since, $6 commit, $7 error
 */
export const REPORTED = statement<{ commit: number }>(
  'volume-copy-reported',
  `update volume_copies c set present = $3, number = $4, dirty_since = $5, commit = greatest(commit, coalesce($6, 0)), error = $7,
          updated_at = now()
    where c.volume_id = $1 and c.runner_id = $2 and c.desired = 'present' returning commit`,
);

/** $1 volume, $2 runner, $3 generation */
export const REMOVED = statement<AssignmentChange>(
  'volume-copy-removed',
  `delete from volume_copies c where c.volume_id = $1 and c.runner_id = $2 and c.generation = $3 and c.desired = 'deleted'
   returning c.volume_id as id, c.runner_id, c.generation, false as assigned_to_runner`,
);

/**
 * Copies that no host needs: nothing is there, and no sandbox that is not deleted has the volume on that host; and all copies of
 * hosts that were forgotten, except those with uncommitted changes, which only these rows report. $1 milliseconds
 */
export const FORGET = statement<AssignmentChange>(
  'volume-copies-forget',
  `delete from volume_copies c using volumes v, runners r
    where v.id = c.volume_id and r.id = c.runner_id and (
      (r.forgotten_at is not null
        and (c.dirty_since is null or v.deleted_at is not null or r.forgotten_at < now() - $1 * interval '1 millisecond'))
      or (c.desired = 'present' and not c.present and c.dirty_since is null and c.updated_at < now() - interval '1 hour'
        and not exists (select 1 from volume_attachments a join sandbox_states s on s.id = a.sandbox_id
                         where a.volume_id = c.volume_id and s.runner_id = c.runner_id and (s.held or s.status <> 'deleted'))))
   returning c.volume_id as id, c.runner_id, c.generation, false as assigned_to_runner`,
);
