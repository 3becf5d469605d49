import type { SandboxRow } from '@releap/database';
import { SANDBOX_DELETED, type Snapshots } from '../snapshots/snapshots.ts';
import type { RestartContext } from '../scheduler/restart.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { changeSandbox } from './change.ts';

interface DeletionContext {
  scheduler: Pick<Scheduler, 'capacityReleased'>;
  snapshots: Pick<Snapshots, 'sandboxesEnded'>;
}

export type DeleteContext = RestartContext & DeletionContext;

/**
 * Deletes a sandbox, in any status.
 * @param shownId as the caller wrote it
 * @throws 404
 */
export async function deleteSandbox(
  context: DeleteContext,
  shownId: string,
  projectId: string,
): Promise<{ id: string; region: string }> {
  const { id, region, status, moved } = await changeSandbox(context, 'delete', shownId, projectId);
  if (moved) await followDeletion(context, [{ id, status }]);
  return { id, region };
}

/** To be called after the event `delete` has been applied. @param moved sandboxes that it moved, with their new status */
export async function followDeletion(
  { scheduler, snapshots }: DeletionContext,
  moved: readonly Pick<SandboxRow, 'id' | 'status'>[],
): Promise<void> {
  // A deleted pending sandbox may have blocked others in the queue.
  if (moved.some(({ status }) => status === 'deleted')) scheduler.capacityReleased();
  await snapshots.sandboxesEnded(
    moved.map(({ id }) => id),
    SANDBOX_DELETED,
  );
}
