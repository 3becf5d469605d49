import { ProcessError, runToExit } from '../process/index.ts';
import type { RunOptions, RunResult } from '../process/index.ts';
import { toImageError } from './image-error.ts';

/** Most bytes of standard output that a tool may print, unless its caller allows more. */
const STDOUT_MAX_BYTES = 64 * 1024;

/** Runs a tool whose exit code the caller judges. @throws ImageError */
export async function runTool(
  tool: string,
  args: readonly string[],
  options: RunOptions & { deadlineMs: number },
): Promise<RunResult> {
  try {
    return await runToExit(tool, args, { stdoutMax: STDOUT_MAX_BYTES, ...options });
  } catch (error) {
    throw error instanceof ProcessError ? toImageError(error, tool) : error;
  }
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
