import { conflict, formatSandboxId, isUuid, quote, snapshotNotFound } from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { SnapshotContext } from './create.ts';

const LOCK_SANDBOX = statement(
  'snapshot-delete-lock-sandbox',
  `select 1 from sandboxes where id = (select sandbox_id from snapshots where id = $1 and project_id = $2) for no key update`,
);
/** Blocks new child snapshots and restores. */
const LOCK = statement<{ id: string; name: string }>(
  'snapshot-delete-lock',
  `select id, name from snapshots where id = $1 and project_id = $2 and owner_service is null and status <> 'deleted' for update`,
);
const CHILD = statement<{ name: string; n: number }>(
  'snapshot-delete-child',
  `select min(name) as name, count(*)::integer as n from snapshots where parent_id = $1 and status in ('pending', 'ready') having count(*) > 0`,
);
/** A sandbox that has not run yet and may still read it: an ephemeral one opens it only when it boots. */
const BEGINNING = statement<{ id: string; region: string; status: string }>(
  'snapshot-delete-beginning',
  `select id, region, status from sandboxes
    where spec -> 'origin' ->> 'snapshot_id' = $1::text and manifest_name is null and desired = 'running'
      and status in ('pending', 'assigned', 'building', 'booting', 'lost') limit 1`,
);

/**
 * `DELETE /snapshots/:id`. Clients no longer see it at once; its runner removes it in the background.
 * @throws 404, or 409 while another snapshot or sandbox needs it
 */
export async function deleteSnapshot(
  { database, snapshots }: SnapshotContext,
  id: string,
  projectId: string,
): Promise<void> {
  if (!isUuid(id)) throw snapshotNotFound(id);
  const { moved, next } = await database.transaction(async (client) => {
    await queryOne(client, LOCK_SANDBOX, [id, projectId]);
    const row = await queryOne(client, LOCK, [id, projectId]);
    if (row === undefined) throw snapshotNotFound(id);
    const refuse = (why: string): Error =>
      conflict(`snapshot ${quote(row.name)} cannot be deleted: ${why}`, 'in_use');
    const child = await queryOne(client, CHILD, [id]);
    if (child !== undefined) {
      const others = child.n === 1 ? '' : ` and ${child.n - 1} more`;
      throw refuse(`snapshot ${quote(child.name)}${others} descends from it: delete that one first`);
    }
    const vm = await queryOne(client, BEGINNING, [id]);
    if (vm !== undefined)
      throw refuse(
        `sandbox ${quote(formatSandboxId(vm.region, vm.id))} is being made from it (${vm.status}): try again when it runs`,
      );
    return snapshots.applyWithin(client, 'delete', [{ id }]);
  });
  snapshots.announce([...moved, ...next]);
}
