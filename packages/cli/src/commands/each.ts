/** Commands that take several names: all of them are tried, and the exit code is the first failure's. */
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { type Context, print, printJson } from '../terminal.ts';

/**
 * Runs `work` for each name in order and prints what it returns: `printed` a line each, or all of it as JSON beside
 * the name under `key`. Failures are printed on stderr, or as `error` beside the name.
 */
export async function forEachNamed(
  context: Context,
  key: string,
  names: readonly string[],
  work: (name: string) => Promise<{ printed?: string; [more: string]: unknown }>,
): Promise<number> {
  let exitCode: number = EXIT.ok;
  const outcomes: Record<string, unknown>[] = [];
  for (const name of names) {
    try {
      const { printed, ...more } = await work(name);
      outcomes.push({ [key]: name, ...more });
      if (!context.options.json && printed !== undefined) print(context, printed);
    } catch (error) {
      if (!(error instanceof CliError) || error.exitCode === EXIT.interrupted) throw error;
      exitCode ||= error.exitCode;
      outcomes.push({ [key]: name, error: error.message });
      if (!context.options.json) context.terminal.stderr.write(`rlp: ${error.message}\n`);
    }
  }
  if (context.options.json) printJson(context, outcomes);
  return exitCode;
}
