import type { Writable } from 'node:stream';
import { lineSplitter } from './lines.ts';
import { ProcessError } from './process-error.ts';
import { killGroup, NOT_FOUND_CODE, startProcess } from './start.ts';

export interface RunOptions {
  /** For the whole run, milliseconds; then its process group is killed. Default 15 s. */
  deadlineMs?: number;
  signal?: AbortSignal | undefined;
  cwd?: string | undefined;
  env?: NodeJS.ProcessEnv | undefined;
  /** Written to its standard input, which is then closed. */
  input?: string;
  /** Writes to its standard input, which stays open unless this closes it. Instead of `input`. */
  feed?: (stdin: Writable) => void;
  /** Most bytes of standard output kept; more ends it with an error. Default 8 MiB. */
  stdoutMax?: number;
  /** Largest file it may write, bytes. */
  fileMax?: number | undefined;
  /** Sees each whole line of standard output, which is then not collected. An exception ends the program. */
  onLine?: (line: string) => void;
  /** Most characters of a line that are kept. Default 64 Ki. */
  lineMax?: number;
  /** Sees each whole line of standard error, whose end is collected all the same. */
  onErrorLine?: (line: string) => void;
  /** An open file that standard output goes to. */
  stdoutFd?: number | undefined;
  /** An open file that it finds as `/proc/self/fd/3`. */
  extraFd?: number | undefined;
}

export interface RunResult {
  code: number;
  stdout: Buffer;
  /** The last 8 KiB. */
  stderr: string;
}

const DEADLINE_MS = 15_000;
const STDOUT_MAX_BYTES = 8 * 1024 * 1024;
const STDERR_MAX_CHARS = 8 * 1024;

/** Runs a program and returns its standard output. @throws ProcessError also when its exit code is not 0 */
export async function run(tool: string, args: readonly string[], options: RunOptions = {}): Promise<string> {
  const { code, stdout, stderr } = await runToExit(tool, args, options);
  if (code === 0) return stdout.toString('utf8');
  const printed = stderr.trim() === '' ? '' : `: ${stderr.trim()}`;
  throw new ProcessError('exit', `${tool} ${args.join(' ')} failed with exit code ${code}${printed}`, stderr);
}

/** Runs a program whose exit code the caller judges. @throws ProcessError */
export async function runToExit(
  tool: string,
  args: readonly string[],
  options: RunOptions = {},
): Promise<RunResult> {
  const { signal, deadlineMs = DEADLINE_MS, stdoutMax = STDOUT_MAX_BYTES } = options;
  if (signal?.aborted) throw new ProcessError('aborted', `${tool} was cancelled`);
  const child = startProcess(tool, args, {
    stdio: [
      options.input === undefined && options.feed === undefined ? 'ignore' : 'pipe',
      options.stdoutFd ?? 'pipe',
      'pipe',
      ...(options.extraFd === undefined ? [] : [options.extraFd]),
    ],
    cwd: options.cwd,
    env: options.env,
    fileMax: options.fileMax,
  });

  let stderr = '';
  let stop: unknown;
  const end = (error: unknown): void => {
    stop ??= error;
    killGroup(child);
    // What it has started and detached may keep the pipes open.
    child.stdout?.destroy();
    child.stderr?.destroy();
  };
  const timer = setTimeout(
    () => end(new ProcessError('timeout', `${tool} did not end within ${deadlineMs} ms`, stderr)),
    deadlineMs,
  );
  const onAbort = (): void => end(new ProcessError('aborted', `${tool} was cancelled`));
  signal?.addEventListener('abort', onAbort, { once: true });

  const stdout: Buffer[] = [];
  let stdoutBytes = 0;
  const onLine = options.onLine && lineSplitter(options.onLine, options.lineMax);
  // With no file descriptors left there are no pipes either.
  child.stdout?.on('data', (chunk: Buffer) => {
    if (onLine) return attempt(() => onLine(chunk), end);
    stdoutBytes += chunk.length;
    if (stdoutBytes <= stdoutMax) stdout.push(chunk);
    else end(new ProcessError('output', `${tool} printed more than ${stdoutMax} bytes`));
  });
  const onErrorLine = options.onErrorLine && lineSplitter(options.onErrorLine);
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(-STDERR_MAX_CHARS);
    if (onErrorLine) attempt(() => onErrorLine(chunk), end);
  });
  // A program that stops reading early says why on its standard error; the broken pipe adds nothing.
  child.stdin?.on('error', () => undefined);
  if (child.stdin && options.feed) options.feed(child.stdin);
  else child.stdin?.end(options.input);

  try {
    const code = await new Promise<number>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (exit, killedBy) => {
        if (exit !== null) return resolve(exit);
        const printed = stderr.trim() === '' ? '' : `: ${stderr.trim()}`;
        const how = killedBy ?? 'a signal';
        reject(stop ?? new ProcessError('killed', `${tool} was killed by ${how}${printed}`, stderr));
      });
    });
    if (stop !== undefined) throw stop;
    if (code === NOT_FOUND_CODE) throw missing(tool, stderr);
    return { code, stdout: Buffer.concat(stdout), stderr };
  } catch (error) {
    const { code, syscall, message } = error as NodeJS.ErrnoException;
    if (syscall?.startsWith('spawn') !== true) throw error;
    if (code === 'ENOENT' && options.cwd === undefined) throw missing('setpriv', message);
    throw new ProcessError('not-started', `${tool} could not be started: ${message}`);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', onAbort);
  }
}

function missing(tool: string, stderr: string): ProcessError {
  return new ProcessError('missing', `${tool} is not installed (rlp doctor names its package)`, stderr);
}

function attempt(call: () => void, onError: (error: unknown) => void): void {
  try {
    call();
  } catch (error) {
    onError(error);
  }
}
