/** Commands that take several names: all of them are tried, and the exit code is the first failure's. */
import { toCliError } from '../cli-error.ts';
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
      const failure = toCliError(error);
      if (failure === undefined || failure.exitCode === EXIT.interrupted) throw error;
      exitCode ||= failure.exitCode;
      outcomes.push({ [key]: name, error: failure.message });
      if (!context.options.json) context.terminal.stderr.write(`rlp: ${failure.message}\n`);
    }
  }
  if (context.options.json) printJson(context, outcomes);
  return exitCode;
}
