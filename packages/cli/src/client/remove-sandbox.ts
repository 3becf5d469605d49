import type { Context } from '../terminal.ts';
import { openService } from './service.ts';

export const CLEANUP_MS = 30_000;

/** Deletes a sandbox that the command has made, also after a Ctrl-C. What goes wrong is said, and no failure of the command. */
export async function removeSandbox(context: Context, id: string): Promise<void> {
  const service = openService(context, AbortSignal.timeout(CLEANUP_MS));
  await service.api.deleteSandbox({ params: { id } }).catch((error: unknown) => {
    context.terminal.stderr.write(
      `rlp: sandbox ${id} was not deleted: ${error instanceof Error ? error.message : String(error)}\n`,
    );
  });
}
