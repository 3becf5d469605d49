/** `rlp ssh` and `rlp forward`: OpenSSH's client on a sandbox. */
import { spawn } from 'node:child_process';
import { findSandbox } from '@releap/sdk';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openService } from '../service.ts';
import { clientOptions } from '../ssh/client-options.ts';
import { type Context, remark } from '../terminal.ts';

export interface SshOptions {
  local?: string[];
  dynamic?: string[];
  tty?: boolean;
  /** False with `--no-command`. */
  command?: boolean;
}

export async function ssh(
  context: Context,
  vm: string,
  command: readonly string[],
  options: SshOptions,
): Promise<number> {
  return await runClient(
    context,
    vm,
    [
      ...(options.local ?? []).flatMap((forward) => ['-L', forward]),
      ...(options.dynamic ?? []).flatMap((forward) => ['-D', forward]),
      ...(options.tty === true ? ['-t'] : []),
      ...(options.command === false ? ['-N'] : []),
    ],
    command,
  );
}

export async function forward(context: Context, vm: string, forwards: readonly string[]): Promise<number> {
  const parsed = forwards.map(parseForward);
  for (const { local, to } of parsed) remark(context, `127.0.0.1:${local} leads to ${to} of ${vm}`);
  return await runClient(
    context,
    vm,
    [
      '-N',
      '-o',
      'ExitOnForwardFailure=yes',
      ...parsed.flatMap(({ local, to }) => ['-L', `127.0.0.1:${local}:${to}`]),
    ],
    [],
  );
}

/** `PORT`, `LOCAL:PORT`, `LOCAL:HOST:PORT`; the host as the sandbox sees it. */
export function parseForward(text: string): { local: number; to: string } {
  const [, local, host, port] =
    /^(\d{1,5})(?::(\[[0-9A-Fa-f:]+\]|(?!\d+(?::|$))[A-Za-z0-9_][A-Za-z0-9._-]*))?(?::(\d{1,5}))?$/.exec(
      text,
    ) ?? [];
  const ports = [local, port ?? local].map(Number);
  if (!ports.every((number) => number >= 1 && number <= 65_535) || (host !== undefined && port === undefined))
    throw usageError(
      `a forward is PORT, LOCAL:PORT or LOCAL:HOST:PORT with ports from 1 to 65535, but was ${JSON.stringify(text)}`,
    );
  return { local: Number(local), to: `${host ?? 'localhost'}:${port ?? local}` };
}

async function runClient(
  context: Context,
  vm: string,
  words: readonly string[],
  command: readonly string[],
): Promise<number> {
  if (context.options.json) throw usageError('ssh and forward have no --json: the output is that of ssh');
  const service = openService(context);
  const [sandbox] = await Promise.all([findSandbox(service, vm), service.regions()]);
  const options = await clientOptions(context, service, sandbox.region, sandbox.id);
  const { url, apiKey } = context.options;
  const child = spawn(
    'ssh',
    [
      ...options.flatMap(([keyword, value]) => ['-o', `${keyword}=${value}`]),
      ...words,
      '-l',
      sandbox.id,
      '--',
      sandbox.id,
      ...command,
    ],
    {
      stdio: 'inherit',
      env: {
        ...context.terminal.env,
        ...(url === undefined ? {} : { RELEAP_URL: url }),
        ...(apiKey === undefined ? {} : { RELEAP_API_KEY: apiKey }),
      },
    },
  );
  // A Ctrl-C on the terminal reaches the client by itself; a SIGTERM does not.
  const end = (): void => {
    if (context.signal.reason !== 'SIGINT') child.kill();
  };
  context.signal.addEventListener('abort', end);
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  child.on('error', (error: NodeJS.ErrnoException) =>
    reject(
      error.code === 'ENOENT'
        ? new CliError('there is no ssh on this machine: install the OpenSSH client', { cause: error })
        : error,
    ),
  );
  child.on('close', (code) => resolve(code ?? EXIT.interrupted));
  try {
    return await promise;
  } finally {
    context.signal.removeEventListener('abort', end);
  }
}
