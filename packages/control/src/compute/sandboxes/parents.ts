import { queryAll, statement, type Queryable } from '@releap/database';

const SET = statement(
  'snapshot-lineage',
  `update sandboxes b set parent_snapshot_id = t.id from unnest($1::uuid[], $2::uuid[]) as t(id, sandbox_id) where b.id = t.sandbox_id`,
);

/** These are the newest snapshots of their sandboxes: the next ones are their children. */
export async function setParents(
  on: Queryable,
  newest: readonly { sandboxId: string; snapshotId: string }[],
): Promise<void> {
  await queryAll(on, SET, [
    newest.map(({ snapshotId }) => snapshotId),
    newest.map(({ sandboxId }) => sandboxId),
  ]);
}
