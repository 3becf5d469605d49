import type { Service } from '@releap/sdk';
import { messageOf } from '../cli-error.ts';
import type { Context } from '../terminal.ts';

export const CLEANUP_MS = 30_000;

/** Deletes a sandbox that the command has made, also after a Ctrl-C. What goes wrong is said, and no failure of the command. */
export async function removeSandbox(context: Context, service: Service, id: string): Promise<void> {
  const { api } = service.withSignal(AbortSignal.timeout(CLEANUP_MS));
  await api.deleteSandbox({ params: { id } }).catch((error: unknown) => {
    context.terminal.stderr.write(`rlp: sandbox ${id} was not deleted: ${messageOf(error)}\n`);
  });
}
