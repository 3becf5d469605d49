import { SANDBOX_DELETED, type Snapshots } from '../snapshots/snapshots.ts';
import type { RestartContext } from '../scheduler/restart.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { changeSandbox } from './change.ts';

export interface DeleteContext extends RestartContext {
  scheduler: Pick<Scheduler, 'capacityReleased'>;
  snapshots: Pick<Snapshots, 'sandboxesEnded'>;
}

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
  // A deleted pending sandbox may have blocked others in the queue.
  if (moved && status === 'deleted') context.scheduler.capacityReleased();
  if (moved) await context.snapshots.sandboxesEnded([id], SANDBOX_DELETED);
  return { id, region };
}
