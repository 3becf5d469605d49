/** A command in a sandbox from the terminal's point of view: what `run` and `exec` share. */
import type { ProcessStreamStart } from '@releap/contract';
import { PassThrough } from 'node:stream';
import type { Toolbox } from '@releap/sdk';
import type { ProcessEnd, ProcessStreams, runProcess } from '@releap/sdk/node/process';
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
  const { terminal } = context;
  const stdin = options.tty || wantsInput(context, options) ? terminal.stdin : null;
  if (context.options.json) {
    const out = capture();
    const err = capture();
    const end = await attach(toolbox, start, {
      stdin: stdin as ProcessStreams['stdin'],
      stdout: out.stream,
      stderr: err.stream,
    });
    return { ...end, stdout: out.text(), stderr: err.text() };
  }
  const streams: ProcessStreams = {
    stdin: stdin as ProcessStreams['stdin'],
    stdout: terminal.stdout,
    stderr: terminal.stderr,
  };
  return options.tty ? onTerminal(context, toolbox, start, streams) : attach(toolbox, start, streams);
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

/** Loaded only here: it would slow the start of every other command. */
async function attach(...args: Parameters<typeof runProcess>): Promise<ProcessEnd> {
  const { runProcess: run } = await import('@releap/sdk/node/process');
  const end = await run(...args);
  return end.error === undefined ? end : { ...end, error: printable(end.error) };
}

async function onTerminal(
  context: Context,
  toolbox: Toolbox,
  start: ProcessStreamStart,
  streams: ProcessStreams,
): Promise<ProcessEnd> {
  const { stdin, stdout, env } = context.terminal;
  // A terminal that does not know its size says 0.
  const size = () => ({ rows: stdout.rows || 24, cols: stdout.columns || 80 });
  const term = env['TERM'];
  stdin.setRawMode?.(true);
  try {
    return await attach(
      toolbox,
      { ...start, pty: size(), env: { ...(term ? { TERM: term } : {}), ...start.env } },
      streams,
      (onResize) => {
        const listener = (): void => onResize(size());
        stdout.on('resize', listener);
        return () => stdout.off('resize', listener);
      },
    );
  } finally {
    stdin.setRawMode?.(false);
  }
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
