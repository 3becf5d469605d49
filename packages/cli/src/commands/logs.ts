/** `rlp logs [-f] VM`: what a sandbox's entrypoint, or its console, has printed. */
import { SANDBOX_STATUS_GROUPS } from '@releap/contract/wire';
import type { RawAnswer } from '@releap/sdk';
import { setTimeout as sleep } from 'node:timers/promises';
import { CliError, usageError } from '../cli-error.ts';
import { findSandbox } from '../client/find-sandbox.ts';
import { LogPosition } from '../client/log-position.ts';
import { openService, type Service } from '../client/service.ts';
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
/** Longest pause of a log that is not followed, in milliseconds. */
const IDLE_MS = 60_000;
export async function logs(context: Context, vm: string, options: LogsOptions): Promise<number> {
  if (options.console && options.entrypoint)
    throw usageError('--console and --entrypoint do not go together');
  if (options.follow && context.options.json) throw usageError('--follow and --json do not go together');
  const service = openService(context);
  const sandbox = await findSandbox(service, vm);
  const kind = options.console ? 'console' : 'entrypoint';
  const read: ReadLog = (follow) => {
    const { getConsoleLog, getEntrypointLog } = service.patient;
    const input = { params: { id: sandbox.id }, query: { follow: follow || undefined } };
    return (kind === 'console' ? getConsoleLog : getEntrypointLog)(input, { idleMs: follow ? 0 : IDLE_MS });
  };
  if (options.follow) await follow(context, service, sandbox.id, read);
  else if (context.options.json)
    printJson(context, { vm_id: sandbox.id, log: kind, text: await (await read(false)).text() });
  else for await (const chunk of await read(false)) await write(context, chunk);
  return EXIT.ok;
}

type ReadLog = (follow: boolean) => Promise<RawAnswer>;

/**
 * Reads until the sandbox has ended. After a connection that was cut, or an answer that ended early, the log is read
 * again, and skips what was printed already.
 */
async function follow(context: Context, service: Service, id: string, read: ReadLog): Promise<void> {
  const position = new LogPosition();
  let failures = 0;
  for (;;) {
    // Read before the log: output in between is then read again.
    const { status } = await service.api.getSandbox({ params: { id } });
    const isSilent = SANDBOX_STATUS_GROUPS.silent.includes(status);
    try {
      let skip = position.isStart ? 0 : await position.findIn(await read(false));
      for await (const chunk of await read(true)) {
        const fresh = chunk.subarray(Math.min(skip, chunk.length));
        skip -= chunk.length - fresh.length;
        failures = 0;
        if (fresh.length === 0) continue;
        position.advance(fresh);
        await write(context, fresh);
      }
    } catch (error) {
      if (!(error instanceof CliError) || error.exitCode === EXIT.interrupted) throw error;
      // There is no log until a sandbox is placed.
      const early = error.status === 404 && !isSilent;
      if (!early && (error.status === 404 || ++failures > RETRIES)) throw error;
    }
    if (isSilent) return;
    await sleep(RETRY_MS, undefined, { signal: context.signal }).catch(() => undefined);
    context.signal.throwIfAborted();
  }
}

async function write(context: Context, chunk: Uint8Array): Promise<void> {
  const { stdout } = context.terminal;
  if (!stdout.write(chunk)) await new Promise<void>((resolve) => stdout.once('drain', () => resolve()));
}
