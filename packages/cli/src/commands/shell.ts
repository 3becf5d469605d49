/** `rlp shell VM`: a terminal in a sandbox that outlives its connection. */
import { findSandbox } from '../client/find-sandbox.ts';
import { openService } from '../client/service.ts';
import type { Context } from '../terminal.ts';
import { attachTerminal } from '../toolbox/terminal-session.ts';
import { openToolbox } from '../toolbox/toolbox.ts';

export async function shell(context: Context, vm: string, options: { name: string }): Promise<number> {
  const service = openService(context);
  const [sandbox] = await Promise.all([findSandbox(service, vm), service.regions()]);
  return await attachTerminal(context, await openToolbox(service, sandbox), options.name);
}
