/** `rlp exec VM -- CMD`: a command in a sandbox that runs. */
import { findSandbox, openToolbox } from '@releap/sdk';
import { openService } from '../service.ts';
import { type Context, printJson } from '../terminal.ts';
import { type CommandOptions, commandStart, exitCodeOf, runCommand } from './command.ts';
import { noCommand } from './run.ts';

export async function exec(
  context: Context,
  vm: string,
  argv: string[],
  options: CommandOptions,
): Promise<number> {
  const start = commandStart(context, argv, options);
  const service = openService(context);
  try {
    const [sandbox] = await Promise.all([findSandbox(service, vm), service.regions()]);
    const toolbox = await openToolbox(service, sandbox);
    const end = await runCommand(context, toolbox, start, options);
    if (context.options.json)
      printJson(context, {
        vm_id: sandbox.id,
        exit_code: end.exitCode,
        timed_out: end.timedOut,
        ...(end.error === undefined ? {} : { error: end.error }),
        stdout: end.stdout,
        stderr: end.stderr,
      });
    return exitCodeOf(end);
  } catch (error) {
    return noCommand(error);
  }
}
