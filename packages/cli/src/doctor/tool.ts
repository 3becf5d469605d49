/** Child processes for the doctor: bounded in time and output, never through a shell, never throwing. */
import { spawn } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';

export interface ToolResult {
  /** Null: it could not be started, or did not end in time. */
  exitCode: number | null;
  timedOut: boolean;
  output: string;
}

const OUTPUT_MAX = 64 * 1024;
/** Where Debian keeps administrators' tools; they are not on every user's PATH. */
const ADMIN_PATH = ['/usr/local/sbin', '/usr/sbin', '/sbin'];

export function findTool(
  name: string,
  env: Readonly<Record<string, string | undefined>>,
): string | undefined {
  return folders(env)
    .map((folder) => join(folder, name))
    .find(isExecutable);
}

function folders(env: Readonly<Record<string, string | undefined>>): string[] {
  return [...(env['PATH'] ?? '').split(delimiter), ...ADMIN_PATH].filter((folder) => folder !== '');
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** `until` ends the child as soon as it is true of the output, which then counts as a success. */
export function runTool(
  path: string,
  args: readonly string[],
  options: {
    timeoutMs: number;
    signal: AbortSignal;
    until?: (output: string) => boolean;
    /** Its environment; it finds administrators' tools. */
    env?: Readonly<Record<string, string | undefined>>;
  },
): Promise<ToolResult> {
  const { promise, resolve } = Promise.withResolvers<ToolResult>();
  let output = '';
  let timedOut = false;
  let reached = false;
  const child = spawn(path, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(options.env && { env: { ...options.env, PATH: folders(options.env).join(delimiter) } }),
    signal: options.signal,
    killSignal: 'SIGKILL',
  });
  const timer = setTimeout(() => {
    timedOut = true;
    child.kill('SIGKILL');
  }, options.timeoutMs);
  const read = (chunk: Buffer): void => {
    if (output.length < OUTPUT_MAX) output += chunk.toString('utf8');
    if (!reached && options.until?.(output)) {
      reached = true;
      child.kill('SIGKILL');
    }
  };
  child.stdout.on('data', read);
  child.stderr.on('data', read);
  child.on('error', () => resolve({ exitCode: null, timedOut, output }));
  child.on('close', (code) => {
    clearTimeout(timer);
    resolve({ exitCode: reached ? 0 : code, timedOut, output });
  });
  return promise;
}
