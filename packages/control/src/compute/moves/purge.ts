import { purge } from '../../platform/retention/purge.ts';

/** What `listHostMoves` shows of moves that have ended. */
export const MOVES_PURGE = purge(
  'sandbox-moves',
  `delete from sandbox_moves where id in (
       select id from sandbox_moves
        where status in ('done', 'failed') and copy_on is null and updated_at < now() - $1 * interval '1 day'
        order by updated_at limit $2 for update skip locked)
     returning id`,
);
