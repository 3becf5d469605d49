import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';

export interface CommandOptions {
  /** Written to the tool's standard input, which is then closed. */
  input?: string;
  /** Milliseconds until the tool is killed. Default 15 s. */
  deadlineMs?: number;
}

const OUTPUT_MAX_BYTES = 8 * 1024 * 1024;
const STDERR_MAX_CHARS = 4_000;

/** A tool that was missing, failed, or took too long; the message names the tool and what it said. */
export class CommandError extends Error {
  readonly exitCode: number | null;
  readonly stderr: string;

  constructor(message: string, exitCode: number | null, stderr: string) {
    super(message);
    this.name = 'CommandError';
    this.exitCode = exitCode;
    this.stderr = stderr;
  }
}

/** Runs a network tool (never a shell) and returns its standard output. Rejects with `CommandError`. */
export async function run(
  tool: string,
  args: readonly string[],
  options: CommandOptions = {},
): Promise<string> {
  const deadlineMs = options.deadlineMs ?? 15_000;
  return await new Promise<string>((resolve, reject) => {
    const child: ChildProcess = spawn(tool, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: toolEnvironment(),
    });
    let stdout = '';
    let stderr = '';
    let problem: string | undefined;
    const stop = (why: string) => {
      problem ??= why;
      child.kill('SIGKILL');
    };
    const timer = setTimeout(() => stop(`did not end within ${deadlineMs} ms`), deadlineMs);
    child.on('error', (error: NodeJS.ErrnoException) => {
      clearTimeout(timer);
      const why = error.code === 'ENOENT' ? 'is not installed' : `could not be started: ${error.message}`;
      reject(new CommandError(`${tool} ${why}`, null, ''));
    });
    // Where no descriptors are left there are no pipes either.
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
      if (stdout.length > OUTPUT_MAX_BYTES) stop(`printed more than ${OUTPUT_MAX_BYTES} bytes`);
    });
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      if (stderr.length < STDERR_MAX_CHARS) stderr += text.slice(0, STDERR_MAX_CHARS);
    });
    // A tool that stops reading early says why on stderr; the broken pipe adds nothing.
    child.stdin?.on('error', () => {});
    child.stdin?.end(options.input ?? '');
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      if (code === 0 && problem === undefined) return resolve(stdout);
      const why = problem ?? (code === null ? `was killed by ${signal}` : `failed with exit code ${code}`);
      const said = stderr.trim() === '' ? '' : `: ${stderr.trim()}`;
      reject(new CommandError(`${tool} ${args.join(' ')} ${why}${said}`, code, stderr));
    });
  });
}

/** The tools must speak English (we match a few messages) and be found even under a thin PATH. */
function toolEnvironment(): NodeJS.ProcessEnv {
  return { PATH: `${process.env['PATH'] ?? ''}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin`, LC_ALL: 'C' };
}
