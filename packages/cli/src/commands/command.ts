/** A command in a sandbox from the terminal's point of view: what `run` and `exec` share. */
import type { ProcessStreamStart } from '@releap/contract';
import { PassThrough } from 'node:stream';
import type { Toolbox } from '@releap/sdk';
import type { ProcessEnd, ProcessStreams } from '@releap/sdk/node/process';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { parseDuration, parseEnv } from '../parse/values.ts';
import { type Context, printable } from '../terminal.ts';

export interface CommandOptions {
  env?: string[];
  workdir?: string;
  user?: string;
  interactive?: boolean;
  tty?: boolean;
  /** False with `--no-stdin`. */
  stdin?: boolean;
  timeout?: string;
}

/** Most that `--json` keeps of each stream: it is one JSON document, held in memory. */
const CAPTURE_MAX_BYTES = 64 * 1024 * 1024;

export interface CapturedEnd extends ProcessEnd {
  stdout?: string;
  stderr?: string;
}

/** Checks what can be checked before a sandbox is made for it. */
export function commandStart(
  context: Context,
  argv: readonly string[],
  options: CommandOptions,
): ProcessStreamStart {
  const { stdin, stdout } = context.terminal;
  if (options.tty && !(stdin.isTTY && stdout.isTTY))
    throw usageError('--tty needs a terminal on stdin and stdout: leave it out in a pipe');
  if (options.tty && context.options.json) throw usageError('--tty and --json do not go together');
  if (argv.some((word) => word.includes('\0'))) throw usageError('a command cannot have NUL characters');
  return {
    type: 'start',
    argv: [...argv],
    ...(options.workdir === undefined ? {} : { cwd: options.workdir }),
    ...(options.user === undefined ? {} : { user: options.user }),
    ...(options.env?.length ? { env: parseEnv(options.env, context.terminal.env) } : {}),
    ...(options.timeout === undefined ? {} : { timeout: parseDuration('--timeout', options.timeout) / 1000 }),
  };
}

export async function runCommand(
  context: Context,
  toolbox: Toolbox,
  start: ProcessStreamStart,
  options: CommandOptions,
): Promise<CapturedEnd> {
  // Loaded only here: it would slow the start of every other command.
  const [{ runProcess }, { runOnTerminal }] = await Promise.all([
    import('@releap/sdk/node/process'),
    import('@releap/sdk/node/terminal'),
  ]);
  const { stdout, stderr, env } = context.terminal;
  if (options.tty) return shown(await runOnTerminal(toolbox, start, context.terminal, env['TERM']));
  const stdin = wantsInput(context, options) ? (context.terminal.stdin as ProcessStreams['stdin']) : null;
  if (!context.options.json) return shown(await runProcess(toolbox, start, { stdin, stdout, stderr }));
  const [out, err] = [capture(), capture()];
  const end = await runProcess(toolbox, start, { stdin, stdout: out.stream, stderr: err.stream });
  return { ...shown(end), stdout: out.text(), stderr: err.text() };
}

function shown(end: ProcessEnd): ProcessEnd {
  return end.error === undefined ? end : { ...end, error: printable(end.error) };
}

/** The exit code of rlp for the end of a command. */
export function exitCodeOf(end: ProcessEnd): number {
  return end.timedOut ? EXIT.timeout : end.exitCode;
}

/** stdin is passed on when something is piped or redirected into rlp, as ssh does; from a terminal only with -i. */
function wantsInput(context: Context, options: CommandOptions): boolean {
  if (options.stdin === false) return false;
  return options.interactive === true || !context.terminal.stdin.isTTY;
}

function capture(): { stream: PassThrough; text: () => string } {
  const chunks: Buffer[] = [];
  let size = 0;
  const stream = new PassThrough();
  stream.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size > CAPTURE_MAX_BYTES)
      stream.destroy(new CliError(`--json holds at most ${CAPTURE_MAX_BYTES} bytes of a stream`));
    else chunks.push(chunk);
  });
  return { stream, text: () => Buffer.concat(chunks).toString('utf8') };
}
