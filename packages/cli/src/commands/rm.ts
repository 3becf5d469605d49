/** `rlp rm VM…`: deletes sandboxes. */
import { findSandbox } from '../api/find-sandbox.ts';
import { openService } from '../api/service.ts';
import { waitUntilDeleted } from '../api/wait-sandbox.ts';
import { CliError } from '../cli-error.ts';
import { Spinner } from '../output/spinner.ts';
import type { Context } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface RmOptions {
  force?: boolean;
  wait?: boolean;
}

const WAIT_MS = 180_000;

/** Goes on after a failure, and ends with the first one's exit code. */
export async function rm(context: Context, vms: string[], options: RmOptions): Promise<number> {
  await using service = openService(context);
  return await forEachNamed(context, 'vm', vms, async (vm) => {
    try {
      const { id, name } = await findSandbox(service, vm);
      const { status } = await service.deleteSandbox(id);
      if (!options.wait) return { vm_id: id, status, printed: id };
      using _spinner = new Spinner(context, `deleting ${name}`);
      await waitUntilDeleted(service, id, { deadlineMs: WAIT_MS });
      return { vm_id: id, status: 'deleted', printed: id };
    } catch (error) {
      if (options.force && error instanceof CliError && error.status === 404) return { status: 'absent' };
      throw error;
    }
  });
}
