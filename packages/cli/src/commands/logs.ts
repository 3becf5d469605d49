/** `rlp logs [-f] VM`: what a sandbox's entrypoint, or its console, has printed. */
import type { SandboxStatus } from '@releap/contract';
import { setTimeout as sleep } from 'node:timers/promises';
import { findSandbox } from '../api/find-sandbox.ts';
import { networkError } from '../api/http.ts';
import { openService, type Service } from '../api/service.ts';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { type Context, printJson } from '../terminal.ts';

export interface LogsOptions {
  follow?: boolean;
  console?: boolean;
  entrypoint?: boolean;
}

const RETRY_MS = 1_000;
/** Calls in a row that may fail before following gives up. */
const RETRIES = 10;
/** From here on nothing more will be printed. */
const ENDED: ReadonlySet<SandboxStatus> = new Set([
  'stopped',
  'paused',
  'deleting',
  'deleted',
  'failed',
  'lost',
]);

export async function logs(context: Context, vm: string, options: LogsOptions): Promise<number> {
  if (options.console && options.entrypoint)
    throw usageError('--console and --entrypoint do not go together');
  if (options.follow && context.options.json) throw usageError('--follow and --json do not go together');
  await using service = openService(context);
  const sandbox = await findSandbox(service, vm);
  const kind = options.console ? 'console' : 'entrypoint';
  const path = `/vms/${encodeURIComponent(sandbox.id)}/${kind === 'console' ? 'logs' : 'entrypoint-logs'}`;
  if (options.follow) await follow(context, service, sandbox.id, path);
  else if (context.options.json) {
    const chunks: Buffer[] = [];
    await copy(service, path, false, (chunk) => chunks.push(chunk));
    printJson(context, { vm_id: sandbox.id, log: kind, text: Buffer.concat(chunks).toString('utf8') });
  } else await copy(service, path, false, (chunk) => write(context, chunk));
  return EXIT.ok;
}

/**
 * Reads until the sandbox has ended. A connection that is cut, or an answer that ends early, is taken up where
 * it stopped: the log is read anew, and what was printed already is skipped.
 */
async function follow(context: Context, service: Service, id: string, path: string): Promise<void> {
  let printed = 0;
  let failures = 0;
  for (;;) {
    // Asked before reading: what is printed between the two is then still read once more.
    const { status } = await service.getSandbox(id);
    let skip = printed;
    try {
      await copy(service, path, true, async (chunk) => {
        const fresh = chunk.subarray(Math.min(skip, chunk.length));
        skip -= chunk.length - fresh.length;
        printed += fresh.length;
        failures = 0;
        if (fresh.length > 0) await write(context, fresh);
      });
    } catch (error) {
      if (!(error instanceof CliError) || error.exitCode === EXIT.interrupted) throw error;
      // There is no log until a sandbox is placed.
      const early = error.status === 404 && !ENDED.has(status);
      if (!early && (error.status === 404 || ++failures > RETRIES)) throw error;
    }
    if (ENDED.has(status)) return;
    await sleep(RETRY_MS, undefined, { signal: context.signal }).catch(() => undefined);
    context.signal.throwIfAborted();
  }
}

async function copy(
  service: Service,
  path: string,
  following: boolean,
  sink: (chunk: Buffer) => unknown,
): Promise<void> {
  const answer = await service.http.stream(path, {
    query: { follow: following ? true : undefined },
    idleMs: following ? 0 : 60_000,
  });
  try {
    for await (const chunk of answer.body as AsyncIterable<Buffer>) await sink(chunk);
  } catch (error) {
    throw networkError(error, new URL(service.url), service.http.signal);
  }
}

async function write(context: Context, chunk: Buffer): Promise<void> {
  const { stdout } = context.terminal;
  if (!stdout.write(chunk)) await new Promise<void>((resolve) => stdout.once('drain', () => resolve()));
}
