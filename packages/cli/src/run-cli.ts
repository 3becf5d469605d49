/** One call of `rlp`, from the words of the command line to an exit code. Never throws, never ends the process. */
import { CommanderError } from 'commander';
import { type CliError, toCliError } from './cli-error.ts';
import { EXIT } from './exit-codes.ts';
import { createProgram } from './program.ts';
import { paint, type Terminal } from './terminal.ts';

export async function runCli(
  argv: readonly string[],
  terminal: Terminal,
  signal: AbortSignal,
): Promise<number> {
  let exitCode: number = EXIT.ok;
  const program = createProgram({
    argv,
    terminal,
    signal,
    done: (code) => {
      exitCode = code;
    },
  });
  try {
    if (argv.length === 0) {
      program.outputHelp();
      return EXIT.usage;
    }
    await program.parseAsync(argv, { from: 'user' });
    return exitCode;
  } catch (error) {
    // `--help` and `--version` come as errors whose exit code is 0.
    if (error instanceof CommanderError && error.exitCode === 0) return EXIT.ok;
    // `rlp images --bogus` and the like; help that an invalid call prints is an error too.
    return explain(argv, terminal, error, signal);
  }
}

function explain(argv: readonly string[], terminal: Terminal, error: unknown, signal: AbortSignal): number {
  const failure = describe(error, signal);
  const options = argv.slice(0, argv.includes('--') ? argv.indexOf('--') : argv.length);
  if (options.includes('--json')) {
    const { message, exitCode, status, code } = failure;
    terminal.stderr.write(`${JSON.stringify({ error: message, exit_code: exitCode, status, code })}\n`);
  } else {
    terminal.stderr.write(`${paint(terminal, terminal.stderr, 'red', 'rlp:')} ${failure.message}\n`);
  }
  if (terminal.env['RLP_DEBUG'] && error instanceof Error) {
    const cause = error.cause instanceof Error ? `\ncaused by ${error.cause.stack}` : '';
    terminal.stderr.write(`${error.stack}${cause}\n`);
  }
  return failure.exitCode;
}

function describe(
  error: unknown,
  signal: AbortSignal,
): { message: string; exitCode: number; status?: number | undefined; code?: CliError['code'] } {
  if (error instanceof CommanderError) {
    const text = error.message.replace(/^error: /, '');
    const hint = error.code === 'commander.unknownOption' ? ' (the words of a command go after --)' : '';
    return {
      message: text === '(outputHelp)' ? "say what to do: 'rlp --help' lists the commands" : `${text}${hint}`,
      exitCode: EXIT.usage,
    };
  }
  const expected = toCliError(error);
  if (expected !== undefined) return expected;
  if (signal.aborted) return { message: 'interrupted', exitCode: EXIT.interrupted };
  const message = error instanceof Error ? error.message : String(error);
  return { message: `${message} (unexpected: RLP_DEBUG=1 shows more)`, exitCode: EXIT.failed };
}
