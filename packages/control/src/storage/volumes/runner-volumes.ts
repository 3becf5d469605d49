/** What runners read of volumes: only of those that they are assigned a copy of. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { notFound, type RunnerVolume } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import { TELL } from './copy-statements.ts';
import { mayHaveChanges } from './uncommitted.ts';

interface ReadRow {
  size_gb: number;
  state: 'ready' | 'deleted';
  commit_request: number;
  number: number;
  root: string | null;
  bytes: string | null;
  uncommitted: boolean;
}

/** $1 volume, $2 runner, $3 the request that other hosts must have fulfilled */
const READ = statement<ReadRow>(
  'volume-for-runner',
  `select v.size_gb, case when v.deleted_at is null then 'ready' else 'deleted' end as state, v.commit_request, v.head as number,
          m.root, b.bytes,
          exists (select 1 from volume_copies o where o.volume_id = v.id and o.runner_id <> $2 and ${mayHaveChanges('o', '$3::integer')})
            as uncommitted
     from volume_copies c join volumes v on v.id = c.volume_id
     left join volume_manifests m on m.volume_id = v.id and m.number = v.head left join blobs b on b.digest = m.root
    where c.volume_id = $1 and c.runner_id = $2`,
);

/** Asks the others to commit, where one may have something to. $1 volume, $2 runner */
const OPEN = statement<{ commit_request: number; asked: boolean }>(
  'volume-open',
  `with others as (
     select exists (select 1 from volume_copies o
                     where o.volume_id = $1 and o.runner_id <> $2 and ${mayHaveChanges('o', '2147483647')}) as asked
   )
   update volumes v set commit_request = commit_request + others.asked::integer, last_used_at = now()
     from others
    where v.id = $1 and v.deleted_at is null
      and exists (select 1 from volume_copies c where c.volume_id = $1 and c.runner_id = $2 and c.desired = 'present')
   returning v.commit_request, others.asked`,
);

export interface RunnerVolumes {
  /** @param commit the request that other hosts must have fulfilled @throws 404 */
  read(runnerId: string, volumeId: string, commit: number): Promise<RunnerVolume>;
  /** Tells other hosts to commit. @throws 404 */
  open(runnerId: string, volumeId: string): Promise<RunnerVolume>;
}

export function createRunnerVolumes(
  { pool }: Database,
  onChanged: (changes: readonly AssignmentChange[]) => void,
): RunnerVolumes {
  const read: RunnerVolumes['read'] = async (runnerId, id, commit) => {
    const row = await queryOne(pool, READ, [id, runnerId, commit]);
    if (row === undefined) throw noCopy(id);
    const { size_gb, state, commit_request, number, root, bytes, uncommitted } = row;
    const head = root === null ? null : { number, root, bytes: Number(bytes) };
    return { id, size_gb, state, head, commit: commit_request, uncommitted };
  };

  return {
    read,
    async open(runnerId, id) {
      const opened = await queryOne(pool, OPEN, [id, runnerId]);
      if (opened === undefined) throw noCopy(id);
      if (opened.asked) onChanged(await queryAll(pool, TELL, [id, runnerId]));
      return read(runnerId, id, opened.commit_request);
    },
  };
}

/** The same answer for a volume that does not exist. */
export const noCopy = (volumeId: string): Error =>
  notFound(`the volume ${volumeId} is not assigned to this runner`, 'volume_not_found');
