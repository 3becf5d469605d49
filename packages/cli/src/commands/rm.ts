/** `rlp rm VM…`: deletes sandboxes. */
import { CliError } from '../cli-error.ts';
import { findSandbox } from '../client/find-sandbox.ts';
import { openService } from '../client/service.ts';
import { waitUntilDeleted } from '../client/wait-sandbox.ts';
import { Spinner } from '../output/spinner.ts';
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
      if (options.force && error instanceof CliError && error.status === 404) return { status: 'absent' };
      throw error;
    }
  });
}
