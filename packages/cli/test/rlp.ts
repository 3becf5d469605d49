/** Calls `rlp`: the real one as a child process, or the same code in the process of the test, which is faster. */
import { type ChildProcess, spawn } from 'node:child_process';
import { PassThrough } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { runCli } from '../src/run-cli.ts';

export const BIN = fileURLToPath(new URL('../bin/rlp', import.meta.url));
const DEADLINE_MS = 180_000;

/** The service, and a key of a project of it. */
export interface Target {
  url: string;
  key: string;
}

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface RlpOptions {
  input?: string | Buffer;
  env?: Record<string, string>;
}

export interface ProcessOptions extends RlpOptions {
  /** Called with the child as soon as it has started. */
  started?: (child: ChildProcess) => void;
  bin?: string;
}

export interface HereOptions extends RlpOptions {
  /** Called with all of stdout so far, whenever there is more. */
  onStdout?: (text: string) => void;
  onStderr?: (text: string) => void;
}

export function rlp(
  target: Target | null,
  args: readonly string[],
  options: ProcessOptions = {},
): Promise<Outcome> {
  const child = spawn(options.bin ?? BIN, args, {
    env: environment(target, options),
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

/** In this process. */
export async function rlpHere(
  target: Target | null,
  args: readonly string[],
  options: HereOptions = {},
): Promise<Outcome> {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  stdin.end(options.input ?? '');
  const printed = { stdout: '', stderr: '' };
  stdout.setEncoding('utf8').on('data', (text: string) => {
    printed.stdout += text;
    options.onStdout?.(printed.stdout);
  });
  stderr.setEncoding('utf8').on('data', (text: string) => {
    printed.stderr += text;
    options.onStderr?.(printed.stderr);
  });
  const terminal = { stdin, stdout, stderr, env: environment(target, options) };
  const ended = [stdout, stderr].map((stream) => new Promise((resolve) => stream.once('end', resolve)));
  const code = await runCli(args, terminal, AbortSignal.timeout(DEADLINE_MS));
  stdout.end();
  stderr.end();
  await Promise.all(ended);
  return { code, ...printed };
}

function environment(target: Target | null, options: RlpOptions): Record<string, string> {
  return {
    PATH: process.env['PATH'] ?? '',
    HOME: process.env['HOME'] ?? '/',
    RELEAP_HOME: '/nonexistent',
    // No user is signed in, whatever the configuration of the user that runs the tests.
    XDG_CONFIG_HOME: '/nonexistent',
    ...(target ? { RELEAP_URL: target.url, RELEAP_API_KEY: target.key } : {}),
    ...options.env,
  };
}

export function json(outcome: Outcome): Record<string, unknown> {
  return JSON.parse(outcome.stdout) as Record<string, unknown>;
}
