/** The SQL of moves. Each change of a move locks its row: of two servers one does it. */
import type { DesiredState, SandboxStatus } from '@releap/contract';
import { statement } from '@releap/database';
import { IN_PROGRESS, MOVE_EVENTS, type MoveStatus } from './transitions.ts';

/** A move in progress, with what decides its next step. */
export interface MoveRow {
  id: string;
  status: MoveStatus;
  sandbox_id: string;
  source_id: string;
  target_id: string | null;
  copy_on: string | null;
  resumes: boolean;
  arrived: boolean;
  attempts: number;
  /** Its deadline, or the time until the next attempt, has passed. */
  overdue: boolean;
  due: boolean;
  error: string | null;
  /** Of the sandbox. */
  project_id: string;
  sandbox_status: SandboxStatus;
  desired: DesiredState;
  generation: number;
  runner_id: string | null;
  is_moving: boolean;
  is_forked: boolean;
  has_memory: boolean;
  memory_blocked: string | null;
  volume_count: number;
  scratch_mib: number;
  mem_mib: number;
  sandbox_error: string | null;
  /** Its volumes have changes that only the source has. */
  uncommitted: boolean;
  stored: boolean;
  transfer_error: string | null;
  /** Uploads that have failed. */
  failed_uploads: number;
  /** The source is still being drained with moves. */
  leaving: boolean;
  target_lost: boolean;
}

/** Of an upload or a fetch that is tried again. */
const TRANSFER_ERROR =
  '(select l.error from artifact_locations l where l.artifact_id = m.id and l.error is not null limit 1)';

/** Those that wait come last. */
export const MOVES = statement<MoveRow>(
  'sandbox-moves',
  `select m.id, m.status, m.sandbox_id, m.source_id, m.target_id, m.copy_on, m.resumes, m.arrived_at is not null as arrived, m.attempts,
          coalesce(m.deadline_at <= now(), false) as overdue, coalesce(m.retry_at <= now(), true) as due, m.error,
          s.project_id, s.status as sandbox_status, s.desired, s.generation, s.runner_id, s.move_id is not distinct from m.id as is_moving,
          s.pending_fork is not null as is_forked, s.has_memory, s.memory_blocked, s.volume_count, s.scratch_mib, s.mem_mib,
          s.error as sandbox_error,
          s.volume_count > 0 and exists (
            select 1 from volume_attachments v join volume_copies c on c.volume_id = v.volume_id
             where v.sandbox_id = s.id and c.runner_id = m.source_id and c.desired = 'present' and c.dirty_since is not null) as uncommitted,
          a.stored_at is not null as stored,
          ${TRANSFER_ERROR} as transfer_error,
          coalesce((select l.attempts from artifact_locations l where l.artifact_id = m.id and l.runner_id = m.source_id), 0) as failed_uploads,
          r.draining_since is not null and r.drain_move and r.forgotten_at is null as leaving,
          coalesce(t.status = 'lost' or t.forgotten_at is not null, false) as target_lost
     from sandbox_moves m join sandboxes s on s.id = m.sandbox_id join runners r on r.id = m.source_id
     left join runners t on t.id = m.target_id left join artifacts a on a.id = m.id
    where m.status in ${IN_PROGRESS}
    order by m.status = 'waiting', m.resumes desc, m.created_at limit 500`,
);

/** Locks a move that is still in this status. $1 move, $2 status */
export const LOCK = statement<{ id: string }>(
  'sandbox-move-lock',
  'select id from sandbox_moves where id = $1 and status = $2 for no key update skip locked',
);
/** $1 move, $2 target, $3 deadline in milliseconds */
export const STORE = statement(
  'sandbox-move-store',
  `update sandbox_moves m set ${MOVE_EVENTS.sets('m', 'store')}, target_id = $2, error = null, updated_at = now(),
          deadline_at = now() + $3 * interval '1 millisecond' where m.id = $1`,
);
/** The target is assigned a copy. $1 move, $2 its generation, $3 deadline in milliseconds */
export const PLACE = statement(
  'sandbox-move-place',
  `update sandbox_moves m set ${MOVE_EVENTS.sets('m', 'place')}, copy_on = m.target_id, generation = $2, error = null, updated_at = now(),
          deadline_at = now() + $3 * interval '1 millisecond' where m.id = $1`,
);
/** The source is assigned the sandbox as deleted. $1 move, $2 generation, $3 deadline in milliseconds */
export const ARRIVE = statement(
  'sandbox-move-arrive',
  `update sandbox_moves m set ${MOVE_EVENTS.sets('m', 'arrive')}, copy_on = m.source_id, generation = $2, error = null, retry_at = null,
          updated_at = now(), deadline_at = now() + $3 * interval '1 millisecond' where m.id = $1`,
);
/** $1 move, $2 deadline in milliseconds */
export const STAY = statement(
  'sandbox-move-stay',
  `update sandbox_moves m set ${MOVE_EVENTS.sets('m', 'stay')}, error = null, updated_at = now(),
          deadline_at = now() + $2 * interval '1 millisecond' where m.id = $1`,
);
/** A target with a copy is assigned it as deleted. $1 move, $2 error */
export const FAIL = statement<{ copy_on: string | null; generation: number }>(
  'sandbox-move-fail',
  `update sandbox_moves m set ${MOVE_EVENTS.sets('m', 'fail')}, error = $2, generation = m.generation + 1, deadline_at = null, updated_at = now()
    where m.id = $1 returning m.copy_on, m.generation`,
);
/** $1 move, $2 error, $3 whether it runs again */
export const FINISH = statement<{ pause_ms: number | null }>(
  'sandbox-move-finish',
  `update sandbox_moves m set ${MOVE_EVENTS.sets('m', 'finish')}, error = $2, deadline_at = null, updated_at = now(),
          pause_ms = case when $3 then extract(epoch from now() - m.paused_at) * 1000 end
    where m.id = $1 returning m.pause_ms`,
);
/** What it waits for. $1 move, $2 reason, $3 milliseconds until the next attempt, $4 attempts that this adds */
export const WAIT = statement(
  'sandbox-move-wait',
  `update sandbox_moves m set error = $2, retry_at = now() + $3 * interval '1 millisecond', attempts = m.attempts + $4, updated_at = now()
    where m.id = $1`,
);
/** Hosts that have, or may have, a copy of the sandbox. $1 sandbox */
export const COPY_HOSTS = statement<{ copy_on: string }>(
  'sandbox-move-copy-hosts',
  'select copy_on from sandbox_moves where sandbox_id = $1 and copy_on is not null',
);
/** A host that was forgotten has no copies any more. */
export const FORGET_COPIES = statement(
  'sandbox-moves-forget-copies',
  `update sandbox_moves m set copy_on = null from runners r where r.id = m.copy_on and r.forgotten_at is not null and m.status <> 'placing'`,
);

/** These ran until the drain. $1 sandboxes, $2 their hosts */
export const BEGIN = statement(
  'sandbox-moves-begin',
  `insert into sandbox_moves as m (id, sandbox_id, source_id, status, resumes, paused_at)
   select gen_random_uuid(), t.sandbox_id, t.runner_id, 'waiting', true, now() from unnest($1::uuid[], $2::uuid[]) as t(sandbox_id, runner_id)
   on conflict (sandbox_id) where status in ${IN_PROGRESS}
   do update set resumes = true, paused_at = now(), updated_at = now() where m.status = 'waiting'`,
);
/** After the first failure; it doubles with each further one, up to half an hour: each attempt uploads all of it. */
const RETRY_S = 30;

/**
 * Sandboxes that do not run on hosts that are being drained with moves. One whose move has failed is moved again after a while, and still
 * runs again if it did before. $1 host, or null for all; $2 only those that ran, however short ago their move has failed
 */
export const BEGIN_RESTING = statement<{ id: string }>(
  'sandbox-moves-begin-resting',
  `insert into sandbox_moves (id, sandbox_id, source_id, status, resumes, paused_at)
   select gen_random_uuid(), s.id, s.runner_id, 'waiting', coalesce(f.resumes, false), f.paused_at
     from runners r join sandboxes s on s.runner_id = r.id and s.held
     left join lateral (
       select o.resumes, o.paused_at, o.updated_at, count(*) over () as failures from sandbox_moves o
        where o.sandbox_id = s.id and o.source_id = r.id and o.status = 'failed' and o.created_at >= r.draining_since
        order by o.created_at desc limit 1) f on true
    where r.draining_since is not null and r.drain_move and r.forgotten_at is null and r.status = 'online'
      and s.status in ('stopped', 'paused') and s.persistent and s.manifest_name is not null and s.owner_kind = 'project'
      and not exists (select 1 from sandbox_moves m where m.sandbox_id = s.id and m.status in ${IN_PROGRESS})
      and ($1::uuid is null or r.id = $1)
      and case when $2::boolean then coalesce(f.resumes, false)
               else f.updated_at is null or f.updated_at < now() - ${RETRY_S} * power(2, least(f.failures - 1, 6)) * interval '1 second' end
    limit 500
   on conflict do nothing returning id`,
);

/** $1 host */
export const OF_HOST = statement<{
  sandbox_id: string;
  region: string;
  status: MoveStatus;
  target_id: string | null;
  resumes: boolean;
  pause_ms: number | null;
  error: string | null;
  created_at: Date;
  updated_at: Date;
}>(
  'sandbox-moves-of-host',
  `select m.sandbox_id, s.region, m.status, m.target_id, m.resumes, m.pause_ms,
          coalesce(m.error, case when m.status in ${IN_PROGRESS} then ${TRANSFER_ERROR} end) as error, m.created_at, m.updated_at
     from sandbox_moves m join sandboxes s on s.id = m.sandbox_id
    where m.source_id = $1 order by m.status in ${IN_PROGRESS} desc, m.created_at desc, m.id limit 500`,
);
