/** Calls `rlp`: the real one as a child process, or the same code in the process of the test, which is faster. */
import { type ChildProcess, spawn } from 'node:child_process';
import { PassThrough } from 'node:stream';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { runCli } from '../src/run-cli.ts';
import { KEY, type TestService } from './service.ts';

export const BIN = fileURLToPath(new URL('../bin/rlp', import.meta.url));
const DEADLINE_MS = 180_000;

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
  const child = spawn(options.bin ?? BIN, args, {
    env: environment(service, options),
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

/** In this process. Neither `started` nor `bin` mean anything here. */
export async function rlpHere(
  service: TestService | null,
  args: readonly string[],
  options: Pick<RlpOptions, 'input' | 'env'> = {},
): Promise<Outcome> {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  stdin.end(options.input ?? '');
  const terminal = { stdin, stdout, stderr, env: environment(service, options) };
  const printed = [text(stdout), text(stderr)] as const;
  const code = await runCli(args, terminal, AbortSignal.timeout(DEADLINE_MS));
  stdout.end();
  stderr.end();
  return { code, stdout: await printed[0], stderr: await printed[1] };
}

function environment(service: TestService | null, options: RlpOptions): Record<string, string> {
  return {
    PATH: process.env['PATH'] ?? '',
    HOME: process.env['HOME'] ?? '/',
    RELEAP_HOME: '/nonexistent',
    // Nobody is signed in, whoever runs the tests.
    XDG_CONFIG_HOME: '/nonexistent',
    ...(service ? { RELEAP_URL: service.url, RELEAP_API_KEY: KEY } : {}),
    ...options.env,
  };
}

export function json(outcome: Outcome): Record<string, unknown> {
  return JSON.parse(outcome.stdout) as Record<string, unknown>;
}
