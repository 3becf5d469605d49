/** `rlp rm VM…`: deletes sandboxes. */
import { findSandbox, hasStatus, waitUntilDeleted } from '@releap/sdk';
import { Spinner } from '../output/spinner.ts';
import { openService } from '../service.ts';
import type { Context } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface RmOptions {
  force?: boolean;
  wait?: boolean;
}

const WAIT_MS = 180_000;

/** Continues after a failure, and ends with the first one's exit code. */
export async function rm(context: Context, vms: string[], options: RmOptions): Promise<number> {
  const service = openService(context);
  return await forEachNamed(context, 'vm', vms, async (vm) => {
    try {
      const { id, name } = await findSandbox(service, vm);
      const { status } = await service.api.deleteSandbox({ params: { id } });
      if (!options.wait) return { vm_id: id, status, printed: id };
      using _spinner = new Spinner(context, `deleting ${name}`);
      await waitUntilDeleted(service, id, { deadlineMs: WAIT_MS });
      return { vm_id: id, status: 'deleted', printed: id };
    } catch (error) {
      if (options.force && hasStatus(error, 404, 'sandbox_not_found')) return { status: 'absent' };
      throw error;
    }
  });
}
