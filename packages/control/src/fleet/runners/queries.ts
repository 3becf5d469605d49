import { statement } from '@releap/database';
import { RUNNER_EVENTS } from './transitions.ts';

/** A runner's hello: it is online, not ready yet, and its newest connection is valid. No row if it was forgotten. $1..$7 */
export const RUNNER_HELLO = statement<{ epoch: string }>(
  'runner-hello',
  `insert into runners (id, region, status, data_url, facts, server_id, kinds, capabilities)
   values ($1, $2, 'online', $3, $4::jsonb, $5, $6, $7)
   on conflict (id) do update set region = excluded.region, ${RUNNER_EVENTS.sets('runners', 'hello')}, ready = false,
     data_url = excluded.data_url, facts = excluded.facts, server_id = excluded.server_id, kinds = excluded.kinds,
     capabilities = excluded.capabilities, epoch = runners.epoch + 1, last_seen_at = now()
   where runners.forgotten_at is null
   returning epoch`,
);

/** Its link was closed and it has no newer one. $1 id, $2 epoch */
export const RUNNER_OFFLINE = statement(
  'runner-offline',
  `update runners r set ${RUNNER_EVENTS.sets('r', 'disconnect')}, ready = false
    where id = $1 and epoch = $2 and ${RUNNER_EVENTS.allows('r', 'disconnect')}`,
);

export const RUNNER_READY = statement(
  'runner-ready',
  `update runners set ready = $3, last_seen_at = now() where id = $1 and epoch = $2 and status = 'online'`,
);

/**
 * Heartbeats of the connected runners, also of those that another server marked lost. One that went offline meanwhile
 * stays so. $1 ids, $2 epochs, $3 whether they are ready, $4 memory that they hold outside guarantees, $5 what of that they
 * would release, $6 free disk space, in MiB. Returns those whose connection is still valid.
 */
export const RUNNERS_SEEN = statement<{ id: string }>(
  'runners-seen',
  `update runners r set last_seen_at = now(),
          ${RUNNER_EVENTS.sets('r', { heartbeat: 'true' })}, ready = status <> 'offline' and t.ready,
          held_mem_mib = t.held, reclaimable_mem_mib = t.reclaimable, free_disk_mib = t.free_disk
     from unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::integer[], $5::integer[], $6::integer[])
       as t(id, epoch, ready, held, reclaimable, free_disk)
    where r.id = t.id and r.epoch = t.epoch returning r.id`,
);

/** Marks silent runners lost. $1 milliseconds. */
export const RUNNERS_LOST = statement<{ id: string }>(
  'runners-lost',
  `update runners r set ${RUNNER_EVENTS.sets('r', 'silent')}, ready = false
    where ${RUNNER_EVENTS.allows('r', 'silent')} and last_seen_at < now() - $1 * interval '1 millisecond' returning id`,
);

export const DEPLOYMENT = statement<{ id: string }>('deployment', 'select id from deployment');
