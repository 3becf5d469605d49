/** Starts the real `rlp` as a child process. */
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { KEY, type TestService } from './service.ts';

export const BIN = fileURLToPath(new URL('../bin/rlp', import.meta.url));
const DEADLINE_MS = 60_000;

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface RlpOptions {
  input?: string | Buffer;
  env?: Record<string, string>;
  /** Called with the child as soon as it has started. */
  started?: (child: ChildProcess) => void;
  bin?: string;
}

export function rlp(
  service: TestService | null,
  args: readonly string[],
  options: RlpOptions = {},
): Promise<Outcome> {
  const connection = service ? { RELEAP_URL: service.url, RELEAP_API_KEY: KEY } : {};
  const child = spawn(options.bin ?? BIN, args, {
    env: {
      PATH: process.env['PATH'] ?? '',
      HOME: process.env['HOME'] ?? '/',
      RELEAP_HOME: '/nonexistent',
      ...connection,
      ...options.env,
    },
    stdio: ['pipe', 'pipe', 'pipe'],
    timeout: DEADLINE_MS,
  });
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => stdout.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => stderr.push(chunk));
  child.stdin.on('error', () => undefined);
  if (options.input !== undefined) child.stdin.end(options.input);
  options.started?.(child);
  const { promise, resolve, reject } = Promise.withResolvers<Outcome>();
  child.on('error', reject);
  child.on('close', (code) => {
    child.stdin.destroy();
    resolve({
      code,
      stdout: Buffer.concat(stdout).toString('utf8'),
      stderr: Buffer.concat(stderr).toString('utf8'),
    });
  });
  return promise;
}

export function json(outcome: Outcome): Record<string, unknown> {
  return JSON.parse(outcome.stdout) as Record<string, unknown>;
}
