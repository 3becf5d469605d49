import { spawn } from 'node:child_process';
import type { ChildProcess, SpawnOptions } from 'node:child_process';
import { ImageError, show } from './image-error.ts';

export interface ToolOptions {
  /** Whole run, milliseconds. */
  deadlineMs: number;
  signal?: AbortSignal | undefined;
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** Most bytes of standard output kept; more ends the tool with an error. Default 64 KiB. */
  stdoutMax?: number;
  /** Largest file the tool may write, bytes (RLIMIT_FSIZE); its write fails beyond. */
  fileMax?: number;
  /** Sees each whole line of standard output, which is then not collected. */
  onLine?: (line: string) => void;
  /** Sees each line of standard error; the end of it is collected all the same. */
  onErrorLine?: (line: string) => void;
  /** Where standard output goes instead of to us. */
  stdoutFd?: number;
  /** An open file that the tool finds as `/proc/self/fd/3`. */
  extraFd?: number | undefined;
}

export interface ToolResult {
  code: number;
  stdout: Buffer;
  /** The last 8 KiB. */
  stderr: string;
}

const STDERR_MAX = 8 * 1024;

/**
 * A tool that dies with us: `setpriv --pdeathsig` has the kernel kill it when this process ends, however it ends.
 * Arguments are never read by a shell.
 */
export function spawnTool(
  tool: string,
  args: readonly string[],
  options: SpawnOptions,
  fileMax?: number,
): ChildProcess {
  const limited = fileMax === undefined ? [] : ['prlimit', `--fsize=${Math.ceil(fileMax)}`, '--'];
  return spawn('setpriv', ['--pdeathsig', 'KILL', '--', ...limited, tool, ...args], options);
}

/** Runs a tool to its end. A non-zero exit code is the caller's to judge; not starting, the deadline and a signal throw. */
export async function runTool(
  tool: string,
  args: readonly string[],
  options: ToolOptions,
): Promise<ToolResult> {
  if (options.signal?.aborted) throw new ImageError('aborted', `${tool} was cancelled`);
  const child = spawnTool(
    tool,
    args,
    {
      stdio: [
        'ignore',
        options.stdoutFd ?? 'pipe',
        'pipe',
        ...(options.extraFd === undefined ? [] : [options.extraFd]),
      ],
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      ...(options.env === undefined ? {} : { env: options.env }),
    },
    options.fileMax,
  );

  let stop: ImageError | undefined;
  const end = (error: ImageError): void => {
    stop ??= error;
    child.kill('SIGKILL');
  };
  const timer = setTimeout(
    () =>
      end(new ImageError('timeout', `${tool} took longer than ${Math.round(options.deadlineMs / 1000)} s`)),
    options.deadlineMs,
  );
  const onAbort = (): void => end(new ImageError('aborted', `${tool} was cancelled`));
  options.signal?.addEventListener('abort', onAbort, { once: true });

  const stdout: Buffer[] = [];
  let stdoutBytes = 0;
  const stdoutMax = options.stdoutMax ?? 64 * 1024;
  let partial = '';
  child.stdout?.on('data', (chunk: Buffer) => {
    if (options.onLine) {
      const lines = (partial + chunk.toString('utf8')).split('\n');
      partial = (lines.pop() ?? '').slice(-4096);
      for (const line of lines) options.onLine(line);
      return;
    }
    stdoutBytes += chunk.length;
    if (stdoutBytes > stdoutMax)
      end(new ImageError('too-large', `${tool} answered more than ${stdoutMax} bytes`));
    else stdout.push(chunk);
  });
  let stderr = '';
  let partialError = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(-STDERR_MAX);
    if (!options.onErrorLine) return;
    const lines = (partialError + chunk.toString('utf8')).split('\n');
    partialError = (lines.pop() ?? '').slice(-4096);
    for (const line of lines) options.onErrorLine(line);
  });

  try {
    const code = await new Promise<number>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (exit, killedBy) => {
        if (exit === null)
          reject(stop ?? new ImageError('failed', `${tool} was killed by ${killedBy ?? 'a signal'}`));
        else resolve(exit);
      });
    });
    if (stop) throw stop;
    // setpriv and prlimit answer 127 when the program they are to start is not there.
    if (code === 127) throw missingTool(tool, stderr);
    return { code, stdout: Buffer.concat(stdout), stderr };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') throw missingTool('setpriv', 'not found');
    throw error;
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener('abort', onAbort);
  }
}

export function missingTool(tool: string, said: string): ImageError {
  return new ImageError(
    'tool-missing',
    `cannot start ${tool}; install it (rlp doctor names the package): ${show(said)}`,
  );
}

/** What a tool that fetches things may know of our environment: its way out, and nothing else. */
export function toolEnv(home: string): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { HOME: home, TMPDIR: home, LC_ALL: 'C.UTF-8' };
  for (const name of ['PATH', 'SSL_CERT_FILE', 'SSL_CERT_DIR', ...PROXY_NAMES]) {
    const value = process.env[name];
    if (value !== undefined) env[name] = value;
  }
  return env;
}
const PROXY_NAMES = ['HTTP_PROXY', 'HTTPS_PROXY', 'NO_PROXY', 'http_proxy', 'https_proxy', 'no_proxy'];
