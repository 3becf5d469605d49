/** `rlp shell VM`: a terminal in a sandbox that outlives its connection. */
import { findSandbox, openToolbox } from '@releap/sdk';
import { attachTerminal } from '@releap/sdk/node/terminal-session';
import { usageError } from '../cli-error.ts';
import { openService } from '../service.ts';
import { type Context, remark } from '../terminal.ts';

export async function shell(context: Context, vm: string, options: { name: string }): Promise<number> {
  const { stdin, stdout, env } = context.terminal;
  if (!(stdin.isTTY && stdout.isTTY)) throw usageError('rlp shell needs a terminal on stdin and stdout');
  const service = openService(context);
  const [sandbox] = await Promise.all([findSandbox(service, vm), service.regions()]);
  const { name } = options;
  return await attachTerminal(await openToolbox(service, sandbox), name, context.terminal, {
    term: env['TERM'],
    onAttached: (isNew) =>
      remark(
        context,
        `${isNew ? 'started' : 'attached to'} terminal ${name}; Ctrl-] detaches, and it continues`,
      ),
  });
}
