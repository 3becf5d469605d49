import { spawn } from 'node:child_process';

/** Of its output, for an error. */
const OUTPUT_MAX = 2_000;
/** What a hook must not see: credentials of the service. */
const HIDDEN = /^(RELEAP_|DATABASE_URL$)/;

export interface ProgramOptions {
  deadlineMs: number;
  /** Kills it; its reason is an error that says why. */
  signal: AbortSignal;
  /** For its standard input. */
  input?: string;
}

/**
 * Runs a program and waits for its end. At the deadline it is killed with what it has started.
 * @throws an error for people, with the end of its output
 */
export async function runProgram(
  program: string,
  args: readonly string[],
  { deadlineMs, signal, input = '' }: ProgramOptions,
): Promise<void> {
  signal.throwIfAborted();
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !HIDDEN.test(name)));
  // A process group of its own, to be killed as one.
  const child = spawn(program, args, { env, detached: true, stdio: 'pipe' });
  let output = '';
  const collect = (chunk: Buffer): void => {
    output = (output + chunk.toString('utf8')).slice(-OUTPUT_MAX);
  };
  child.stdout.on('data', collect);
  child.stderr.on('data', collect);
  child.stdin.on('error', () => undefined);
  child.stdin.end(input);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const complain = (what: string): void =>
    reject(new Error(`${program} ${what}${output.trim() === '' ? '' : `: ${output.trim()}`}`));
  const kill = (what: string): void => {
    if (child.pid !== undefined) killGroup(child.pid);
    complain(what);
  };
  const timer = setTimeout(
    () => kill(`did not end within ${deadlineMs / 1000} s and was killed`),
    deadlineMs,
  );
  const onAbort = (): void => kill(`was killed: ${(signal.reason as Error).message}`);
  signal.addEventListener('abort', onAbort, { once: true });
  child.once('error', (error: NodeJS.ErrnoException) =>
    complain(error.code === 'ENOENT' ? 'does not exist' : `cannot be started: ${error.message}`),
  );
  child.once('exit', (code, by) => {
    // What it has started may hold the streams: they are not waited for.
    if (code === 0) resolve();
    else complain(code === null ? `was ended by ${by ?? 'a signal'}` : `ended with exit code ${code}`);
  });
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
    child.stdout.destroy();
    child.stderr.destroy();
  }
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended meanwhile.
  }
}
